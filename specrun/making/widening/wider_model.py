"""The wider model as a whole: what it takes, and writing it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import gguf

from specrun.making.widening.blocks import TYPES
from specrun.making.widening.recipe import Recipe
from specrun.making.widening.shape import read_source


class WiderModel:
    """A model of other sizes that computes what its source does (docs/widening.md). Nothing is written yet.

    path: the source, a llama-architecture GGUF file.
    sizes: the sizes that change, by the names of the fields of `Shape`. `scripts/widen_gguf.py` checks whether they can
        be; nothing here does.
    kind: the type of the matrices, a key of `TYPES`.
    seed: of the weights that have no effect.
    """

    def __init__(self, path: Path, sizes: Mapping[str, int], kind: str, seed: int = 0) -> None:
        source = read_source(path)
        self.recipe = Recipe(source, replace(source.shape, **sizes), TYPES[kind], seed)
        self._tensors = list(self.recipe.tensors())
        self.n_parameters = sum(math.prod(tensor.shape) for tensor in self._tensors)
        self.n_bytes = sum(tensor.n_bytes for tensor in self._tensors)  # of the weights

    def write(self, destination: Path, progress: Callable[[int], None]) -> None:
        """Write the model. Until it is whole, only a file named `....partial` exists. Raises OSError.

        progress: called with the number of bytes after each tensor; it may raise to stop.
        """
        partial = destination.with_name(f"{destination.name}.{os.getpid()}.partial")  # no other process uses this name
        writer = gguf.GGUFWriter(partial, "llama")
        try:
            self.recipe.add_metadata(writer, self.n_parameters)
            for tensor in self._tensors:
                writer.add_tensor_info(tensor.name, tensor.shape, None, tensor.n_bytes, raw_dtype=tensor.kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor in self._tensors:
                writer.write_tensor_data(tensor.make())
                progress(tensor.n_bytes)
            writer.close()
            partial.replace(destination)
        except BaseException:
            writer.close()
            partial.unlink(missing_ok=True)
            raise

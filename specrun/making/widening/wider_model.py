"""The wider model as a whole: whether it can be made, what it takes, and writing it."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import gguf

from specrun.making.candidates import FILE_TYPES, SAME, Candidate
from specrun.making.widening.blocks import TYPES, Type
from specrun.making.widening.recipe import Recipe
from specrun.making.widening.shape import Shape, Source, WideningError, check_sizes, read_source

MIXTURES = tuple(name for name in FILE_TYPES if name not in ("q8_0", SAME))  # several types in a file, by llama.cpp

_HEADER_BYTES = 64_000_000  # room that we ask for besides the weights: metadata, and something to spare
_SUPERBLOCK = 256  # weights of a row that K-quants encode together


class WiderModel:
    """A model of other sizes that computes what its source does (docs/widening.md). Nothing is written yet.

    path: the source, a llama-architecture GGUF file.
    sizes: the sizes that change, by the names of the fields of `Shape`.
    kind: the type of the matrices, a key of `TYPES` or one of `MIXTURES`, which llama.cpp's quantizer makes.
    seed: of the weights that have no effect.

    Raises WideningError for a source that cannot be widened and for sizes that cannot be.
    """

    def __init__(self, path: Path, sizes: Mapping[str, int], kind: str, seed: int = 0) -> None:
        source = read_source(path)
        target = replace(source.shape, **sizes)
        check_sizes(source.shape, target)
        self.kind = kind
        self._is_mixture = _is_mixture(source, kind)
        if self._is_mixture:
            _check_superblocks(target, kind)
        self._recipe = Recipe(source, target, _unrounded_type(source) if self._is_mixture else TYPES[kind], seed)
        self._tensors = list(self._recipe.tensors())

    @property
    def n_parameters(self) -> int:
        """Weights of all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self._tensors)

    @property
    def n_bytes(self) -> int:
        """Bytes of the weights as they are first written."""
        return sum(tensor.n_bytes for tensor in self._tensors)

    @property
    def keeps_weights(self) -> bool:
        """Whether all matrices hold the very weights of the source."""
        return self._recipe.keeps_weights and not self._is_mixture

    @property
    def keeps_rounding(self) -> bool:
        """Whether sums are rounded as in the source."""
        return self._recipe.keeps_rounding

    def check_space(self, folder: Path) -> None:
        """Raise WideningError if the disk has no room for the file and for the file that the quantizer reads."""
        needed, free = self.n_bytes * (2 if self._is_mixture else 1), shutil.disk_usage(folder).free
        if free < needed + _HEADER_BYTES:
            raise WideningError(
                f"{folder} has {free / 1e6:,.0f} MB free and the model needs {needed / 1e6:,.0f} MB; "
                "make room or choose smaller sizes"
            )

    def write(self, destination: Path, progress: Callable[[int], None]) -> None:
        """Write the model. Until it is whole, only a file named `....partial` exists.

        progress: called with the number of bytes after each tensor; it may raise to stop.

        Raises OSError, and LlamaError where the quantizer fails.
        """
        if not self._is_mixture:
            return self._write(destination, progress)
        wide, partial = (_beside(destination, part) for part in ("wide", "partial"))
        n_layers = self._recipe.target.layers
        try:
            self._write(wide, progress)
            Candidate(self.kind, tuple(range(n_layers)), n_layers).write(wide, partial, wait=lambda: None)
            partial.replace(destination)
        finally:
            wide.unlink(missing_ok=True)
            partial.unlink(missing_ok=True)
        return None

    def _write(self, destination: Path, progress: Callable[[int], None]) -> None:
        partial = _beside(destination, "partial")
        writer = gguf.GGUFWriter(partial, "llama")
        try:
            self._recipe.add_metadata(writer, self.n_parameters)
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


def _beside(destination: Path, suffix: str) -> Path:
    """A name next to the destination that no other process uses."""
    return destination.with_name(f"{destination.name}.{os.getpid()}.{suffix}")


def _is_mixture(source: Source, name: str) -> bool:
    """Whether llama.cpp's quantizer makes the file, as its type stands for a mixture that the source does not have."""
    types = {tensor.tensor_type for tensor in source.tensors.values() if len(tensor.shape) == 2}
    return name in MIXTURES and types != {TYPES.get(name)}


def _unrounded_type(source: Source) -> Type:
    """A type that we can write and that holds the source's matrices as they are: their own, or F16."""
    kind = source.tensors["blk.0.attn_q.weight"].tensor_type
    return kind if kind in TYPES.values() else Type.F16


def _check_superblocks(target: Shape, kind: str) -> None:
    """Raise WideningError where llama.cpp's quantizer would give some matrices another type."""
    widths = {"--embd": target.embd, "--ff": target.ff, "the width of all --heads": target.heads * target.head_dim}
    for name, width in widths.items():
        if width % _SUPERBLOCK:
            more = width + -width % _SUPERBLOCK
            raise WideningError(f"{name} {width} is not a multiple of {_SUPERBLOCK}, as {kind} needs; give {more}")

"""Widened models in types that llama.cpp's quantizer makes: several types of matrices in a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from specrun.making.make import FILE_TYPES, SAME, Candidate
from specrun.making.widening import Shape, Source, WiderModel

from .any_model import TYPES
from .checks import WideningError

MIXTURES = tuple(name for name in FILE_TYPES if name not in ("q8_0", SAME))
_SUPERBLOCK = 256  # weights of a row that K-quants encode together


def is_mixture(source: Source, kind: str) -> bool:
    """Whether the quantizer makes the file, as its type stands for a mixture that the source does not have."""
    types = {tensor.tensor_type for tensor in source.tensors.values() if len(tensor.shape) == 2}
    return kind in MIXTURES and types != {TYPES.get(kind)}


def unrounded_kind(source: Source) -> str:
    """A type that `WiderModel` can write and that holds the source's matrices as they are: their own, or F16."""
    own = source.tensors["blk.0.attn_q.weight"].tensor_type
    return next((name for name, kind in TYPES.items() if kind == own), "f16")


def check_superblocks(target: Shape, kind: str) -> None:
    """Raise WideningError where llama.cpp's quantizer would give some matrices another type."""
    widths = {"--embd": target.embd, "--ff": target.ff, "the width of all --heads": target.heads * target.head_dim}
    for name, width in widths.items():
        if width % _SUPERBLOCK:
            more = width + -width % _SUPERBLOCK
            raise WideningError(f"{name} {width} is not a multiple of {_SUPERBLOCK}, as {kind} needs; give {more}")


def write(model: WiderModel, kind: str, destination: Path, progress: Callable[[int], None]) -> None:
    """As `WiderModel.write`, in the type `kind`. Raises LlamaError where the quantizer fails."""
    wide, partial = (destination.with_name(f"{destination.name}.{os.getpid()}.{part}") for part in ("wide", "partial"))
    n_layers = model.target.layers
    try:
        model.write(wide, progress)
        Candidate(kind, tuple(range(n_layers)), n_layers).write(wide, partial, wait=lambda: None)
        partial.replace(destination)
    finally:
        wide.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)

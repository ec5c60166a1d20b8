"""Matrices as encoded blocks of 32 weights: placing them needs no decoding, so weights keep their bits.

A matrix is uint8[rows, columns / 32, bytes of 32 weights], in the bytes that the file holds.
"""

from __future__ import annotations

from typing import TypeAlias

import gguf
import numpy as np
from numpy.typing import NDArray

UNIT = 32  # weights of a quantized block; all sizes are multiples, so that blocks move as they are

Blocks = NDArray[np.uint8]
Floats = NDArray[np.float32]
Type: TypeAlias = gguf.GGMLQuantizationType

_NOISE_UNITS = 1 << 15
_NOISE_SCALE = 0.02


def unit_bytes(kind: Type) -> int:
    """Bytes of 32 weights."""
    n_weights, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    return int(UNIT // n_weights * n_bytes)


def encode(values: Floats, kind: Type) -> Blocks:
    """float32[rows, columns] as blocks of `kind`."""
    encoded = np.ascontiguousarray(gguf.quants.quantize(values, kind))
    return encoded.view(np.uint8).reshape(len(values), -1, unit_bytes(kind))


def read(tensor: gguf.ReaderTensor, kind: Type) -> Blocks:
    """A file's matrix as blocks of `kind`; its own bytes if it already has that type."""
    data = np.ascontiguousarray(tensor.data)
    if tensor.tensor_type == kind:
        return data.view(np.uint8).reshape(len(data), -1, unit_bytes(kind))
    return encode(gguf.quants.dequantize(data, tensor.tensor_type), kind)


def zeros(rows: int, columns: int, kind: Type) -> Blocks:
    """A matrix of zeros; every type that we write encodes them as zero bytes."""
    return np.zeros((rows, columns // UNIT, unit_bytes(kind)), np.uint8)


class Noise:
    """Random weights by the gigabyte: pieces of one encoded pool, each from a random place."""

    def __init__(self, kind: Type, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._kind = kind
        values = self._rng.standard_normal((_NOISE_UNITS, UNIT), np.float32) * np.float32(_NOISE_SCALE)
        self._pool = encode(values, kind).reshape(_NOISE_UNITS, -1)

    def matrix(self, rows: int, columns: int) -> Blocks:
        """A matrix of noise."""
        flat = np.empty((rows * (columns // UNIT), unit_bytes(self._kind)), np.uint8)
        done = 0
        while done < len(flat):
            start = int(self._rng.integers(_NOISE_UNITS))
            piece = self._pool[start : start + len(flat) - done]
            flat[done : done + len(piece)] = piece
            done += len(piece)
        return flat.reshape(rows, columns // UNIT, -1)

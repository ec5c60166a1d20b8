"""Dividing consecutive layers among several GPUs, as llama.cpp can be told to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

_HALVINGS = 20  # of the interval that the common degree of filling is searched in


def divide(units: Sequence[int], rooms: Sequence[int]) -> list[int] | None:
    """How many of the `units` (bytes, in order) go to each GPU with `rooms` bytes; None if they do not fit.

    All GPUs become about equally full: what is not planned for takes memory on each of them.
    """
    counts = fill(units, rooms)
    if counts is None or len(rooms) == 1:
        return counts
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        spread = fill(units, [int(room * middle) for room in rooms])
        if spread is None:
            low = middle
        else:
            high, counts = middle, spread
    return counts


def fill(units: Sequence[int], rooms: Sequence[int]) -> list[int] | None:
    """The same, but each GPU full before the next gets anything."""
    counts = []
    position = 0
    for room in rooms:
        begin, left = position, room
        while position < len(units) and units[position] <= left:
            left -= units[position]
            position += 1
        counts.append(position - begin)
    return counts if position == len(units) else None


def holds(units: Sequence[int], counts: Sequence[int], rooms: Sequence[int]) -> bool:
    """Whether so many units fit each room."""
    ends = [0, *np.cumsum(counts).tolist()]
    return all(sum(units[begin:end]) <= room for (begin, end), room in zip(pairwise(ends), rooms, strict=True))


def counts_of_split(split: Sequence[float], n_gpus: int, n_units: int) -> list[int]:
    """How many of `n_units` layers each of `n_gpus` gets with this `--tensor-split`, missing shares being 0.

    As load_tensors in llama.cpp's llama-model.cpp divides, in float32; shares that are counts give just these.
    """
    shares = np.zeros(n_gpus, np.float32)
    shares[: len(split)] = split[:n_gpus]
    total = np.cumsum(shares, dtype=np.float32)[-1]
    ends = np.cumsum(shares, dtype=np.float32) / (total or np.float32(1))
    positions = np.arange(n_units, dtype=np.float32) / np.float32(max(n_units, 1))
    gpus = np.minimum(np.searchsorted(ends, positions, side="right"), n_gpus - 1)
    return np.bincount(gpus, minlength=n_gpus).tolist()

"""Divides consecutive layers among several GPUs, in the way that llama.cpp's `tensor_split` can express."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

_HALVINGS = 20  # steps of the binary search for the share of every GPU to fill


def divide(units: Sequence[int], rooms: Sequence[int], remote: Collection[int] = ()) -> list[int] | None:
    """How many of the `units` (bytes each, in order) go to each GPU; None if they do not fit.

    rooms: free bytes of each GPU. All GPUs are filled to about the same share, because each also needs memory that is
    not planned here. remote: indices of GPUs that get only the units for which the others have no room.
    """
    here = [index for index in range(len(rooms)) if index not in remote]
    alone = _spread(units, [0 if index in remote else room for index, room in enumerate(rooms)], here)
    return _spread(units, rooms, remote) if remote and alone is None else alone


def _spread(units: Sequence[int], rooms: Sequence[int], shared: Collection[int]) -> list[int] | None:
    """As `divide`, with the GPUs in `shared` filled to the smallest share with which all units fit."""
    counts = fill(units, rooms)
    if counts is None or len(rooms) == 1:
        return counts
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        spread = fill(units, [int(room * middle) if i in shared else room for i, room in enumerate(rooms)])
        if spread is None:
            low = middle
        else:
            high, counts = middle, spread
    return counts


def fill(units: Sequence[int], rooms: Sequence[int]) -> list[int] | None:
    """Like `divide`, but fills each GPU completely before the next one."""
    counts: list[int] = []
    for room in rooms:
        sizes = np.cumsum(units[sum(counts) :])
        counts.append(int(np.searchsorted(sizes, room, side="right")))
    return counts if sum(counts) == len(units) else None


def holds(units: Sequence[int], counts: Sequence[int], rooms: Sequence[int]) -> bool:
    """Whether each GPU has room for its number of units. Arguments as in `divide`; `counts`: units of each GPU."""
    ends = [0, *np.cumsum(counts).tolist()]
    return all(sum(units[begin:end]) <= room for (begin, end), room in zip(pairwise(ends), rooms, strict=True))


def counts_of_split(split: Sequence[float], n_gpus: int, n_units: int) -> list[int]:
    """How many of `n_units` layers each of `n_gpus` GPUs gets with this `--tensor-split`; missing shares count as 0.

    Computes in float32 like load_tensors in llama.cpp's llama-model.cpp. Shares that are layer counts give just these.
    """
    shares = np.zeros(n_gpus, np.float32)
    shares[: len(split)] = split[:n_gpus]
    total = np.cumsum(shares, dtype=np.float32)[-1]
    ends = np.cumsum(shares, dtype=np.float32) / (total or np.float32(1))
    positions = np.arange(n_units, dtype=np.float32) / np.float32(max(n_units, 1))
    gpus = np.minimum(np.searchsorted(ends, positions, side="right"), n_gpus - 1)
    return np.bincount(gpus, minlength=n_gpus).tolist()

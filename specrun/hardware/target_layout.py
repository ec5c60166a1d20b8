"""Chooses the GPU of each of the target's layers, so that as many layers and experts as possible lie in VRAM.

Layers are divided among several GPUs as llama.cpp's `tensor_split` can express it: each gets consecutive ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from specrun.hardware.model_shape import PlacementRequest, decided
from specrun.llama_settings import LlamaSettings

_OFFLOAD_MIN_BATCH = 32  # default of GGML_OP_OFFLOAD_MIN_BATCH: passes of so many tokens copy RAM weights to the GPU
_HALVINGS = 20  # steps of the binary search for the share of every GPU to fill


class TargetLayout(NamedTuple):
    """Where the target's layers lie."""

    gpus: tuple[int | None, ...]  # index of the GPU of each layer and of the output; None for RAM
    n_cpu_moe: int  # number of leading layers whose experts stay in RAM
    compute: tuple[int, ...]  # bytes of the compute buffer on each GPU
    settings: LlamaSettings  # that make llama.cpp load this layout


def lay_out(request: PlacementRequest, room: Sequence[int]) -> TargetLayout:
    """Place the target in the `room` bytes that are free on each GPU beside the draft.

    The number of layers in VRAM is the largest with which everything except routed experts fits. Then as many of these
    layers as possible get their experts into VRAM too.
    """
    target = request.target
    decided_moe = decided(request.settings.n_cpu_moe, len(target.layers))
    if not request.usable_gpus():
        return TargetLayout((None,) * target.n_units, decided_moe or 0, (), LlamaSettings())
    search = _Search(request, room)
    most_in_ram = len(target.layers) if target.is_moe else 0
    fewest = decided_moe if decided_moe is not None else most_in_ram
    decided_units = decided(request.settings.gpu_layers, target.n_units)
    choices = range(target.n_units, -1, -1) if decided_units is None else [decided_units]
    n_units = next((n for n in choices if search.divide(n, fewest)), choices[-1])
    n_cpu_moe = fewest
    if decided_moe is None and n_units:
        n_cpu_moe = next((n for n in range(most_in_ram + 1) if search.divide(n_units, n)), fewest)
    return search.layout(n_units, n_cpu_moe)


class _Search:
    """Checks whether a number of layers fits into VRAM."""

    def __init__(self, request: PlacementRequest, room: Sequence[int]) -> None:
        self._request = request
        self._usable = request.usable_gpus()
        self._room = [room[gpu] for gpu in self._usable]
        self._n_gpus = len(room)
        local = request.local_gpus()
        self._remote = {i for i, gpu in enumerate(self._usable) if gpu not in local} if local else set()
        # Large passes copy weights from RAM to the first GPU of this machine, if it has room for the largest tensor.
        self._copier = self._usable.index(local[0]) if local else None
        self._base = request.target.gpu_activations * request.n_tokens
        self._copied = request.target.largest + request.target.state * request.n_tokens
        threshold = request.settings.offload_min_batch or _OFFLOAD_MIN_BATCH
        may_offload = request.settings.op_offload is not False and request.n_tokens >= threshold
        self._offloads = self._lacks_room_to_offload = False
        if may_offload and self._copier is not None:
            self._offloads = self._base + self._copied <= self._room[self._copier]
            self._lacks_room_to_offload = not self._offloads

    def divide(self, n_units: int, n_cpu_moe: int) -> list[int] | None:
        """How many of the last `n_units` layers, the output included, each GPU takes; None if they do not fit."""
        target = self._request.target
        units = [target.unit(index, n_cpu_moe) for index in range(target.n_units - n_units, target.n_units)]
        if units:
            units[-1] += self._request.gpu_logits(target)
        copies = self._copied if self._copies(n_units, n_cpu_moe) else 0
        rooms = [max(room - self._base - (copies if i == self._copier else 0), 0) for i, room in enumerate(self._room)]
        split = self._request.settings.tensor_split
        if split is None or len(self._usable) == 1:
            return divide(units, rooms, self._remote)
        counts = counts_of_split(split, len(self._usable), n_units)
        return counts if holds(units, counts, rooms) else None

    def _copies(self, n_units: int, n_cpu_moe: int) -> bool:
        """Whether large passes copy weights from RAM. Without a layer in VRAM the target runs on the CPU alone."""
        target = self._request.target
        return self._offloads and n_units > 0 and (n_units < target.n_units or (target.is_moe and n_cpu_moe > 0))

    def layout(self, n_units: int, n_cpu_moe: int) -> TargetLayout:
        """The layout with these numbers. Numbers that do not fit are laid out as well: the user insisted on them."""
        target = self._request.target
        split: Sequence[float] = self._request.settings.tensor_split or [room + 1.0 for room in self._room]
        counts = self.divide(n_units, n_cpu_moe) or counts_of_split(split, len(self._usable), n_units)
        copies = self._copies(n_units, n_cpu_moe)
        compute = [0] * self._n_gpus
        on_gpu: list[int] = []
        for i, (gpu, count) in enumerate(zip(self._usable, counts, strict=True)):
            first = copies and i == self._copier
            compute[gpu] = (self._base if count or first else 0) + (self._copied if first else 0)
            on_gpu += [gpu] * count
        return TargetLayout(
            gpus=(*[None] * (target.n_units - n_units), *on_gpu),
            n_cpu_moe=n_cpu_moe,
            compute=tuple(compute),
            settings=LlamaSettings(
                gpu_layers=n_units,
                n_cpu_moe=n_cpu_moe if target.is_moe else None,
                tensor_split=tuple(map(float, counts)) if n_units and len(self._usable) > 1 else None,
                op_offload=False if self._lacks_room_to_offload else None,
            ),
        )


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

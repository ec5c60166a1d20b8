"""Chooses the GPU of each of the target's layers, so that as many layers and experts as possible lie in VRAM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specrun.hardware.layer_split import counts_of_split, divide, holds
from specrun.hardware.placement_request import PlacementRequest, decided_cpu_moe, decided_units
from specrun.llama_settings import LlamaSettings

_OFFLOAD_MIN_BATCH = 32  # default of GGML_OP_OFFLOAD_MIN_BATCH: passes of so many tokens copy RAM weights to the GPU


@dataclass(frozen=True)
class TargetLayout:
    """Where the target's layers lie."""

    gpus: tuple[int | None, ...]  # index of the GPU of each layer and of the output; None for RAM
    n_cpu_moe: int  # number of leading layers whose experts stay in RAM
    compute: tuple[int, ...]  # bytes of the compute buffer on each GPU
    settings: LlamaSettings  # that make llama.cpp load this layout

    @property
    def n_units(self) -> int:
        """Number of layers in VRAM, the output counted as a layer."""
        return len(self.gpus) - self.gpus.count(None)


def lay_out(request: PlacementRequest, room: Sequence[int]) -> TargetLayout:
    """Place the target in the `room` bytes that are free on each GPU beside the draft.

    The number of layers in VRAM is the largest with which everything except routed experts fits. Then as many of these
    layers as possible get their experts into VRAM too.
    """
    target = request.target
    decided_moe = decided_cpu_moe(request.settings, target)
    if not request.usable_gpus():
        return TargetLayout((None,) * target.n_units, decided_moe or 0, (), LlamaSettings())
    search = _Search(request, room)
    most_in_ram = len(target.layers) if target.is_moe else 0
    fewest = decided_moe if decided_moe is not None else most_in_ram
    decided = decided_units(request.settings, target)
    choices = range(target.n_units, -1, -1) if decided is None else [decided]
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

"""Which layers of the target go to which GPU: most layers that fit, and with them most experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specrun.hardware.layer_split import counts_of_split, divide, holds
from specrun.hardware.placement_request import PlacementRequest, decided_cpu_moe, decided_units
from specrun.llama_settings import LlamaSettings

_OFFLOAD_MIN_BATCH = 32  # GGML_OP_OFFLOAD_MIN_BATCH: passes of so many tokens copy weights from RAM to the GPU


@dataclass(frozen=True)
class TargetLayout:
    """gpus: of each layer and of the output, None for RAM. compute: bytes of compute buffer on each GPU."""

    gpus: tuple[int | None, ...]
    n_cpu_moe: int
    compute: tuple[int, ...]
    settings: LlamaSettings

    @property
    def n_units(self) -> int:
        """Layers in VRAM, the output counted as one."""
        return len(self.gpus) - self.gpus.count(None)


def lay_out(request: PlacementRequest, room: Sequence[int]) -> TargetLayout:
    """Place the target in the `room` bytes that the draft left on each GPU.

    In a mixture of experts their weights leave VRAM first: the number of layers is the largest at which everything but
    experts fits, and then as many layers as possible get their experts back.
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
    """Asks of numbers of layers whether they fit."""

    def __init__(self, request: PlacementRequest, room: Sequence[int]) -> None:
        self._request = request
        self._usable = request.usable_gpus()
        self._room = [room[gpu] for gpu in self._usable]
        self._n_gpus = len(room)
        # Large passes multiply weights that lie in RAM on the first GPU, if it has room for the largest of them.
        self._base = request.target.activations * request.n_tokens
        self._largest = request.target.largest
        wanted = request.settings.op_offload is not False and request.n_tokens >= _OFFLOAD_MIN_BATCH
        self._offloads = wanted and self._base + self._largest <= self._room[0]
        self._has_no_room = wanted and not self._offloads

    def divide(self, n_units: int, n_cpu_moe: int) -> list[int] | None:
        """How many of the last `n_units` layers (output included) each GPU takes, or None if they do not fit."""
        units, rooms = self._units(n_units, n_cpu_moe), self._rooms(n_units, n_cpu_moe)
        split = self._request.settings.tensor_split
        if split is None or len(self._usable) == 1:
            return divide(units, rooms)
        counts = counts_of_split(split, len(self._usable), n_units)
        return counts if holds(units, counts, rooms) else None

    def _units(self, n_units: int, n_cpu_moe: int) -> list[int]:
        target = self._request.target
        units = [target.unit(index, n_cpu_moe) for index in range(target.n_units - n_units, target.n_units)]
        if units:
            units[-1] += target.logits(self._request.n_rows)
        return units

    def _rooms(self, n_units: int, n_cpu_moe: int) -> list[int]:
        copies = self._largest if self._copies(n_units, n_cpu_moe) else 0
        return [max(room - self._base - (0 if i else copies), 0) for i, room in enumerate(self._room)]

    def _copies(self, n_units: int, n_cpu_moe: int) -> bool:
        """Whether weights are copied from RAM in large passes."""
        target = self._request.target
        return self._offloads and (n_units < target.n_units or (target.is_moe and n_cpu_moe > 0))

    def layout(self, n_units: int, n_cpu_moe: int) -> TargetLayout:
        """The layout with these numbers, which are the user's own where they do not fit."""
        target = self._request.target
        split: Sequence[float] = self._request.settings.tensor_split or [room + 1.0 for room in self._room]
        counts = self.divide(n_units, n_cpu_moe) or counts_of_split(split, len(self._usable), n_units)
        copies = self._copies(n_units, n_cpu_moe)
        compute = [0] * self._n_gpus
        for i, (gpu, count) in enumerate(zip(self._usable, counts, strict=True)):
            first = copies and i == 0
            compute[gpu] = (self._base if count or first else 0) + (self._largest if first else 0)
        on_gpu = [gpu for gpu, count in zip(self._usable, counts, strict=True) for _ in range(count)]
        return TargetLayout(
            gpus=(*[None] * (target.n_units - n_units), *on_gpu),
            n_cpu_moe=n_cpu_moe,
            compute=tuple(compute),
            settings=LlamaSettings(
                gpu_layers=n_units,
                n_cpu_moe=n_cpu_moe if target.is_moe else None,
                tensor_split=tuple(map(float, counts)) if n_units and len(self._usable) > 1 else None,
                op_offload=False if self._has_no_room else None,
            ),
        )

"""Plans which layers of target and draft lie in VRAM and which in RAM, for both models together, before loading them.

VRAM goes first to the whole draft, because it runs many small passes for each pass of the target, and then to the
target's layers, beginning with the last. RPC servers are counted as GPUs. They hold no draft, and only those layers of
the target for which the GPUs of this machine have no room. In a mixture of experts, experts are put into RAM before
attention is, because each token uses few of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specrun.hardware.placement_request import MARGIN_BYTES, MARGIN_SHARE, PlacementRequest, decided_units
from specrun.hardware.target_layout import TargetLayout, lay_out
from specrun.llama_settings import UNDECIDED, LlamaSettings

Regime = Literal["in VRAM", "partly in VRAM", "in RAM", "streamed"]
PartName = Literal["draft", "target", "experts", "KV cache", "compute"]

_STEP_BYTES = 256_000_000  # `step_down` raises the margin of each GPU at least by this


@dataclass(frozen=True)
class Site:
    """What is planned to lie in the memory of one device."""

    name: str
    description: str
    free_bytes: int  # before loading
    parts: dict[PartName, int]  # bytes; only parts that are there
    is_remote: bool = False  # whether it is an RPC server; the description then is HOST:PORT

    @property
    def used_bytes(self) -> int:
        """Bytes of all parts together."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Placement:
    """The plan for both models."""

    request: PlacementRequest
    settings: LlamaSettings  # of the target, for what the user left undecided
    draft_settings: LlamaSettings  # of the draft, for what the user left undecided
    gpus: tuple[Site, ...]  # as many as the request has GPUs
    ram: Site
    layer_gpus: tuple[int | None, ...]  # index of the GPU of each of the target's layers and of its output; None: RAM
    n_cpu_moe: int  # number of leading layers of the target whose experts stay in RAM
    draft_in_vram: bool  # whether the whole draft lies in VRAM
    regime: Regime  # of the target
    can_repack: bool  # whether weights may be re-ordered for the CPU, into memory that cannot be streamed from disk

    @property
    def n_gpu_layers(self) -> int:
        """Number of the target's layers in VRAM, its output counted as a layer."""
        return sum(gpu is not None for gpu in self.layer_gpus)

    def holds_target_like(self, other: Placement) -> bool:
        """Whether the target's layers lie in the same places as in `other`, so that its passes take as long."""
        return self.layer_gpus == other.layer_gpus and self.regime == other.regime

    @property
    def vram_bytes(self) -> int:
        """Bytes planned on all GPUs together."""
        return sum(site.used_bytes for site in self.gpus)

    def step_down(self) -> Placement | None:
        """A placement with less VRAM, to try after this placement failed to load; None if it needs no VRAM."""
        largest = max((gpu.free_bytes for gpu in self.request.gpus), default=0)
        step = max(_STEP_BYTES, int(largest * MARGIN_SHARE))
        request = self.request
        while request.margin_bytes < largest:
            request = replace(request, margin_bytes=request.margin_bytes + step)
            smaller = place(request)
            if smaller.vram_bytes < self.vram_bytes:
                return smaller
        return None


def place(request: PlacementRequest) -> Placement:
    """Plan the memory of both models."""
    room = [request.budget(gpu) for gpu in range(len(request.gpus))]
    gpu_parts: list[Counter[PartName]] = [Counter() for _ in request.gpus]
    home, n_draft_units = _place_draft(request, room)
    draft_settings = UNDECIDED
    if n_draft_units:
        gpu_parts[home] = Counter(_draft_parts(request, n_draft_units))
        room[home] = max(room[home] - sum(gpu_parts[home].values()), 0)
        # A split that gives everything to one GPU keeps the draft there in every split mode.
        split = tuple(float(gpu == home) for gpu in range(len(room))) if len(room) > 1 else None
        draft_settings = LlamaSettings(gpu_layers=n_draft_units, tensor_split=split)
    layout = lay_out(request, room)
    _add_target_parts(request, layout, gpu_parts)
    ram_parts = _ram_parts(request, layout, n_draft_units)
    fits_ram = sum(ram_parts.values()) <= request.ram_bytes - MARGIN_BYTES
    is_whole = layout.n_units == request.target.n_units and not (request.target.is_moe and layout.n_cpu_moe)
    regime: Regime = "in VRAM" if is_whole else "partly in VRAM" if layout.n_units else "in RAM"
    return Placement(
        request=request,
        settings=layout.settings,
        draft_settings=draft_settings,
        gpus=tuple(
            Site(gpu.name, gpu.description, gpu.free_bytes, dict(+parts), gpu.is_remote)
            for gpu, parts in zip(request.gpus, gpu_parts, strict=True)
        ),
        ram=Site("RAM", "", request.ram_bytes, ram_parts),
        layer_gpus=layout.gpus,
        n_cpu_moe=layout.n_cpu_moe,
        draft_in_vram=request.draft is not None and n_draft_units == request.draft.n_units,
        regime=regime if fits_ram else "streamed",
        # Beside a GPU, llama.cpp keeps weights in RAM in that GPU's host memory or in plain memory, never re-ordered.
        can_repack=fits_ram and not layout.n_units,
    )


def _place_draft(request: PlacementRequest, room: Sequence[int]) -> tuple[int, int]:
    """The draft's GPU, and the number of its layers in VRAM: all or none, unless the user gave a number."""
    if not request.draft:
        return 0, 0
    decided = decided_units(request.draft_settings, request.draft)
    # Each of its many small passes would wait for the network.
    usable = request.local_gpus() or (request.usable_gpus() if decided else [])
    if not usable:
        return 0, 0
    home, n_units = max(usable, key=lambda gpu: room[gpu]), request.draft.n_units
    if decided is not None:
        return home, decided
    return home, n_units if sum(_draft_parts(request, n_units).values()) <= room[home] else 0


def _draft_parts(request: PlacementRequest, n_units: int) -> dict[PartName, int]:
    """Bytes in VRAM of the draft's last `n_units` layers, the output counted as a layer."""
    draft = request.draft
    assert draft
    first = draft.n_units - n_units
    return {
        "draft": sum(draft.layers[first:]) + sum(draft.experts[first:]) + draft.output,
        "KV cache": sum(draft.kv[first:]),
        "compute": draft.gpu_activations * request.n_tokens + request.gpu_logits(draft),
    }


def _add_target_parts(request: PlacementRequest, layout: TargetLayout, gpu_parts: list[Counter[PartName]]) -> None:
    target = request.target
    for index, gpu in enumerate(layout.gpus):
        if gpu is None:
            continue
        parts = gpu_parts[gpu]
        if index == len(target.layers):
            parts["target"] += target.output
            parts["compute"] += request.gpu_logits(target)
            continue
        parts["target"] += target.layers[index]
        parts["experts"] += target.experts[index] if index >= layout.n_cpu_moe else 0
        parts["KV cache"] += target.kv[index]
    for gpu, n_bytes in enumerate(layout.compute):
        gpu_parts[gpu]["compute"] += n_bytes


def _ram_parts(request: PlacementRequest, layout: TargetLayout, n_draft_units: int) -> dict[PartName, int]:
    """Bytes in RAM: weights that are not in VRAM with their KV cache, and the logits of both models."""
    parts: Counter[PartName] = Counter()
    draft, target = request.draft, request.target
    if draft:
        end = draft.n_units - n_draft_units
        output = 0 if n_draft_units or draft.is_tied else draft.output
        parts["draft"] += draft.embedding + sum(draft.layers[:end]) + sum(draft.experts[:end]) + output
        parts["KV cache"] += sum(draft.kv[:end])
        parts["compute"] += draft.logits(request.n_rows) + (draft.activations * request.n_tokens if end else 0)
    parts["draft"] += request.states_bytes
    parts["target"] += target.embedding
    for index, gpu in enumerate(layout.gpus):
        if index == len(target.layers):
            parts["target"] += target.output if gpu is None and not target.is_tied else 0
            continue
        if gpu is None:
            parts["target"] += target.layers[index]
            parts["KV cache"] += target.kv[index]
        if gpu is None or index < layout.n_cpu_moe:
            parts["experts"] += target.experts[index]
    in_ram = layout.gpus[0] is None or (target.is_moe and layout.n_cpu_moe > 0)
    parts["compute"] += target.logits(request.n_rows) + (target.activations * request.n_tokens if in_ram else 0)
    return dict(+parts)

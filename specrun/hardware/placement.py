"""Plans which layers of target and draft lie in VRAM and which in RAM, for both models together, before loading them.

VRAM goes first to the whole draft, because it runs many small passes for each pass of the target, and then to the
target's layers, beginning with the last. RPC servers are counted as GPUs. They hold no draft, and only those layers of
the target for which the GPUs of this machine have no room. In a mixture of experts, experts are put into RAM before
attention is, because each token uses few of them. What lies on an integrated GPU takes RAM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specrun.hardware.model_shape import MARGIN_BYTES, MARGIN_SHARE, PlacementRequest, decided
from specrun.hardware.target_layout import TargetLayout, lay_out
from specrun.llama_settings import UNDECIDED, LlamaSettings

Regime = Literal["in VRAM", "partly in VRAM", "in RAM", "streamed"]
PartName = Literal["draft", "target", "experts", "KV cache", "compute"]
Parts = Counter[PartName]  # bytes

MAX_STEPS_DOWN = 4  # smaller placements that are tried when VRAM is too small; four leave a fifth of it free
_STEP_BYTES = 256_000_000  # `step_down` raises the margin of each GPU at least by this


@dataclass(frozen=True)
class Site:
    """What is planned to lie in the memory of one device."""

    name: str
    description: str
    free_bytes: int  # before loading; of RAM, what GPUs leave that use it as well
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
    can_repack: bool  # whether all weights lie in RAM and may be re-ordered, into memory that cannot be streamed

    @property
    def n_gpu_layers(self) -> int:
        """Number of the target's layers in VRAM, its output counted as a layer."""
        return sum(gpu is not None for gpu in self.layer_gpus)

    @property
    def layers_text(self) -> str:
        """What of the target lies in VRAM, e.g. `20 of the target's 33 layers`."""
        return f"{self.n_gpu_layers} of the target's {len(self.layer_gpus)} layers"

    def holds_target_like(self, other: Placement) -> bool:
        """Whether the target's layers lie in the same places as in `other`, so that its passes take as long."""
        return self.layer_gpus == other.layer_gpus and self.regime == other.regime

    @property
    def vram_bytes(self) -> int:
        """Bytes planned on all GPUs together."""
        return sum(site.used_bytes for site in self.gpus)

    def step_down(self) -> Placement | None:
        """A placement with less VRAM, to try after memory ran out with this one; None if there is none."""
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
    gpu_parts: list[Parts] = [Counter() for _ in request.gpus]
    home, n_draft_units = _place_draft(request, room)
    draft_in_vram, ram_parts = _draft_parts(request, n_draft_units)
    draft_settings = UNDECIDED
    if n_draft_units:
        gpu_parts[home] = draft_in_vram
        room[home] = max(room[home] - draft_in_vram.total(), 0)
        # A split that gives everything to one GPU keeps the draft there in every split mode.
        split = tuple(float(gpu == home) for gpu in range(len(room))) if len(room) > 1 else None
        draft_settings = LlamaSettings(gpu_layers=n_draft_units, tensor_split=split)
    layout = lay_out(request, room)
    _add_target_parts(request, layout, gpu_parts, ram_parts)
    shared = sum(parts.total() for gpu, parts in zip(request.gpus, gpu_parts, strict=True) if gpu.shares_ram)
    free_ram = max(request.ram_bytes - shared, 0)
    fits_ram = ram_parts.total() <= free_ram - MARGIN_BYTES
    n_in_ram = layout.gpus.count(None)
    is_whole = not n_in_ram and not (request.target.is_moe and layout.n_cpu_moe)
    is_in_ram = n_in_ram == request.target.n_units
    regime: Regime = "in VRAM" if is_whole else "in RAM" if is_in_ram else "partly in VRAM"
    return Placement(
        request=request,
        settings=layout.settings,
        draft_settings=draft_settings,
        gpus=tuple(
            Site(gpu.name, gpu.description, gpu.free_bytes, dict(+parts), gpu.is_remote)
            for gpu, parts in zip(request.gpus, gpu_parts, strict=True)
        ),
        ram=Site("RAM", "", free_ram, dict(+ram_parts)),
        layer_gpus=layout.gpus,
        n_cpu_moe=layout.n_cpu_moe,
        draft_in_vram=request.draft is not None and n_draft_units == request.draft.n_units,
        regime=regime if fits_ram else "streamed",
        # Beside a GPU re-ordered weights are never copied to it, so whether they are faster takes a trial.
        can_repack=fits_ram and is_in_ram,
    )


def _place_draft(request: PlacementRequest, room: Sequence[int]) -> tuple[int, int]:
    """The draft's GPU, and the number of its layers in VRAM: all or none, unless the user gave a number."""
    if not request.draft:
        return 0, 0
    wanted = decided(request.draft_settings.gpu_layers, request.draft.n_units)
    # Each of its many small passes would wait for the network.
    usable = request.local_gpus() or (request.usable_gpus() if wanted else [])
    if not usable:
        return 0, 0
    home, n_units = max(usable, key=lambda gpu: room[gpu]), request.draft.n_units
    if wanted is not None:
        return home, wanted
    return home, n_units if _draft_parts(request, n_units)[0].total() <= room[home] else 0


def _draft_parts(request: PlacementRequest, n_units: int) -> tuple[Parts, Parts]:
    """Bytes in VRAM and in RAM, with the draft's last `n_units` layers in VRAM, the output counted as a layer."""
    vram: Parts = Counter()
    ram: Parts = Counter({"draft": request.states_bytes})
    if draft := request.draft:
        first = draft.n_units - n_units
        ram["draft"] += draft.embedding + sum(draft.layers[:first]) + sum(draft.experts[:first])
        ram["KV cache"] += sum(draft.kv[:first])
        ram["compute"] += draft.logits(request.n_rows) + (draft.activations * request.n_tokens if first else 0)
        if n_units:
            vram["draft"] += sum(draft.layers[first:]) + sum(draft.experts[first:]) + draft.output
            vram["KV cache"] += sum(draft.kv[first:])
            vram["compute"] += draft.gpu_activations * request.n_tokens + request.gpu_logits(draft)
        elif not draft.is_tied:
            ram["draft"] += draft.output
    return vram, ram


def _add_target_parts(
    request: PlacementRequest, layout: TargetLayout, gpu_parts: Sequence[Parts], ram_parts: Parts
) -> None:
    """Add the target's weights with their KV cache, buffers and logits to the bytes on each GPU and in RAM."""
    target = request.target
    ram_parts["target"] += target.embedding
    for index, gpu in enumerate(layout.gpus):
        parts = ram_parts if gpu is None else gpu_parts[gpu]
        if index == len(target.layers):
            parts["target"] += 0 if gpu is None and target.is_tied else target.output
            parts["compute"] += 0 if gpu is None else request.gpu_logits(target)
            continue
        parts["target"] += target.layers[index]
        parts["KV cache"] += target.kv[index]
        (ram_parts if index < layout.n_cpu_moe else parts)["experts"] += target.experts[index]
    for gpu, n_bytes in enumerate(layout.compute):
        gpu_parts[gpu]["compute"] += n_bytes
    in_ram = layout.gpus[0] is None or (target.is_moe and layout.n_cpu_moe > 0)
    activations = target.activations * request.n_tokens if in_ram else 0
    ram_parts["compute"] += target.logits(request.n_rows) + activations

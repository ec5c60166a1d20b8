"""Plans which layers of target and draft lie in VRAM and which in RAM, for both models together, before loading them.

VRAM goes first to the whole draft, because it runs many small passes for each pass of the target, and then to the
target's layers, beginning with the last. RPC servers are counted as GPUs. They hold no draft, and only those layers of
the target for which the GPUs of this machine have no room. In a mixture of experts, experts are put into RAM before
attention is, because each token uses few of them. What lies on an integrated GPU takes RAM. Layers are divided among
several GPUs as llama.cpp's `tensor_split` can express it: each gets consecutive ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from specrun.hardware.model_shape import MARGIN_BYTES, MARGIN_SHARE, PlacementRequest, decided
from specrun.llama_settings import UNDECIDED, LlamaSettings

Regime = Literal["in VRAM", "partly in VRAM", "in RAM", "streamed"]
PartName = Literal["draft", "target", "experts", "KV cache", "compute"]
Parts = Counter[PartName]  # bytes

MAX_STEPS_DOWN = 4  # smaller placements that are tried when VRAM is too small; four leave a fifth of it free
_STEP_BYTES = 256_000_000  # `step_down` raises the margin of each GPU at least by this
_OFFLOAD_MIN_BATCH = 32  # default of GGML_OP_OFFLOAD_MIN_BATCH: passes of so many tokens copy RAM weights to the GPU
_HALVINGS = 20  # steps of the binary search for the share of every GPU to fill


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

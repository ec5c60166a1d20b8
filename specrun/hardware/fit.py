"""Whether a model fits a machine, and roughly how fast it would write there, before its file is here; and which layers
stay in RAM where not all of them fit. The others are read again in every pass, and take turns in a few slots of memory
(`specrun/llama/streaming/`).

Placement decides where the weights would lie, as it does when they are loaded. The time of a token is then taken to be
that of reading the weights that it uses once, from wherever they lie: on all machines that specrun is for, passes over
one token wait for memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from specrun.display_text import size_text
from specrun.hardware.machine import Device
from specrun.hardware.memory import margin_bytes
from specrun.hardware.model_shape import ModelShape, PlacementRequest
from specrun.hardware.placement import Placement, place

Fits = Literal["vram", "partly", "ram", "streamed", "no"]

# What a run with default options needs: a context of 4,096 tokens with room for a tree of 128, passes over the prompt
# of 512 tokens, and logits of the largest tree.
CELLS = 4096 + 128 + 64
_TOKENS = 512
_ROWS = 128

_REGIMES: dict[str, Fits] = {"in VRAM": "vram", "partly in VRAM": "partly", "in RAM": "ram", "streamed": "streamed"}


@dataclass(frozen=True)
class Rates:
    """Bytes a second that passes read. The defaults are assumed: what passes reach of the data sheets of a mid-range
    card, of two channels of DDR5 and of a PCIe SSD. measured: names of the rates that were measured on this machine.
    busy: of these, names of those that were measured while other programs held cores.
    """

    vram: float = 240e9
    ram: float = 35e9
    disk: float = 2e9
    measured: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """How a model lies on a machine."""

    fits: Fits
    tokens_per_second: float  # estimated, of plain decoding; 0 where it does not fit
    placement: Placement


def fit(
    target: ModelShape,
    draft: ModelShape | None,
    gpus: Sequence[Device],
    ram_bytes: int,
    rates: Rates,
    used_share: float = 1.0,
) -> Fit:
    """Place a model and its draft with default options. used_share: of a layer's experts, which a token uses."""
    placement = place(PlacementRequest(target, draft, tuple(gpus), ram_bytes, _TOKENS, _ROWS))
    room = room_for_weights(placement)
    fits = _REGIMES[placement.regime]
    if fits == "streamed" and not _can_stream(placement, room):
        return Fit("no", 0.0, placement)
    return Fit(fits, 1 / _seconds(placement, room, rates, used_share), placement)


def expert_share(placement: Placement, used_share: float) -> float:
    """The share of a token's time in which experts are read, with assumed rates. used_share: as in `fit`."""
    room = room_for_weights(placement)
    return 1 - _seconds(placement, room, Rates(), 0.0) / _seconds(placement, room, Rates(), used_share)


def _can_stream(placement: Placement, room: int) -> bool:
    """Whether what every pass needs in RAM at once fits there.

    For a mixture these are the weights that every token uses; else two layers, and the weights outside the layers.
    """
    target, in_ram = placement.request.target, placement.ram.parts.get("target", 0)
    if target.is_moe:
        return in_ram <= room
    layers = target.layers[: placement.layer_gpus[:-1].count(None)]
    return plan_residency(layers, in_ram - sum(layers), room) is not None


def _seconds(placement: Placement, room: int, rates: Rates, used_share: float) -> float:
    """Seconds to read what one token uses."""
    target = placement.request.target
    on_gpus = 0.0
    for gpu, site in zip(placement.request.gpus, placement.gpus, strict=True):
        used = site.parts.get("target", 0) + used_share * site.parts.get("experts", 0)
        on_gpus += used / (rates.ram if gpu.shares_ram else rates.vram)
    dense, experts = placement.ram.parts.get("target", 0), placement.ram.parts.get("experts", 0)
    from_disk = 0.0
    if placement.regime == "streamed":
        read = used_share * max(experts - max(room - dense, 0), 0)
        from_disk = read if target.is_moe else max(dense - room, 0)
    # A token looks up one row of the embedding, unless the output matrix is the same and lies in RAM.
    rows = target.embedding if placement.layer_gpus[-1] is not None or not target.is_tied else 0
    from_ram = max(dense - rows, 0) + used_share * experts - from_disk
    return on_gpus + max(from_ram, 0.0) / rates.ram + from_disk / rates.disk


FEWEST_SLOTS = 2  # a slot is computed while the next is filled

ResidencyMode = Literal["ring", "experts", "off"]


@dataclass(frozen=True)
class Residency:
    """How the target's weights in RAM are held, as reports say it. All numbers are 0 with mode `off`."""

    # ring: specrun streams layers that do not fit; experts: it reads the experts that are chosen into memory of its
    # own; off: llama.cpp holds all weights its own way.
    mode: ResidencyMode = "off"
    resident_bytes: int = 0  # weights that stay in memory
    streamed_bytes: int = 0  # weights that every pass reads; all experts, of which it reads some
    n_slots: int = 0
    slot_bytes: int = 0
    locked: bool = False  # whether resident weights and slots are locked into memory, so that they are never swapped
    given_back_bytes: int = 0  # memory that was given back, because the system ran short of it
    cache_bytes: int = 0  # memory for experts

    @property
    def notice(self) -> str | None:
        """A sentence for the user if memory ran short; else None."""
        if not self.given_back_bytes:
            return None
        given, read = size_text(self.given_back_bytes), size_text(self.streamed_bytes)
        then = f"{size_text(self.cache_bytes)} of experts stay" if self.cache_bytes else f"every pass now reads {read}"
        return f"memory ran short, so {given} of weights were given back to the system; {then}"

    def __str__(self) -> str:
        if self.mode == "off":
            return "held as llama.cpp holds them"
        held = "locked in RAM" if self.locked else "in RAM (not locked, so swap may take them: `ulimit -l` is too low)"
        resident, streamed = f"{size_text(self.resident_bytes)} {held}", size_text(self.streamed_bytes)
        given_back = f"; {size_text(self.given_back_bytes)} given back to the system" if self.given_back_bytes else ""
        if self.mode == "experts":
            kept = f"up to {size_text(self.cache_bytes)} of them kept"
            return f"{resident}; {streamed} of experts, read when they are chosen, {kept}{given_back}"
        slots = f"{self.n_slots} slots of {size_text(self.slot_bytes)}"
        return f"{resident}, {streamed} streamed through {slots}{given_back}"


@dataclass(frozen=True)
class ResidencyPlan:
    """Which layers are streamed."""

    streamed: tuple[int, ...]  # indices of the layers, ascending; none if all weights fit
    n_slots: int
    slot_bytes: int  # of the largest streamed layer
    resident_bytes: int
    streamed_bytes: int

    @property
    def held_bytes(self) -> int:
        """Memory that resident weights and slots take."""
        return self.resident_bytes + self.n_slots * self.slot_bytes


def room_for_weights(placement: Placement) -> int:
    """Bytes of RAM that the target's weights may take beside caches, buffers, the draft and a margin."""
    ram = placement.ram
    beside = sum(n_bytes for part, n_bytes in ram.parts.items() if part not in ("target", "experts"))
    return max(ram.free_bytes - beside - margin_bytes(placement.request.ram_bytes), 0)


def plan_residency(layers: Sequence[int], others: int, room: int, n_slots: int = FEWEST_SLOTS) -> ResidencyPlan | None:
    """As many resident layers as fit into `room` bytes, spread evenly; None if not even all layers can be streamed.

    layers: bytes of each layer. others: bytes of all weights outside the layers, which always stay.
    """
    return next((plan for plan in _plans((), layers, others, n_slots) if plan.held_bytes <= room), None)


def relieved(plan: ResidencyPlan, layers: Sequence[int], n_bytes: int) -> ResidencyPlan:
    """The plan with just so many fewer resident layers that `n_bytes` become free. Streamed layers stay streamed."""
    others = plan.resident_bytes + plan.streamed_bytes - sum(layers)
    for smaller in _plans(plan.streamed, layers, others, plan.n_slots):
        if smaller.held_bytes <= plan.held_bytes - n_bytes:
            break
    return smaller


def _plans(always: Sequence[int], layers: Sequence[int], others: int, n_slots: int) -> Iterator[ResidencyPlan]:
    """Plans with fewer and fewer resident layers. always: layers that are streamed in each plan."""
    resident = [layer for layer in range(len(layers)) if layer not in always]
    for n_resident in range(len(resident), -1, -1):
        streamed = tuple(sorted([*always, *_but_some(resident, n_resident)]))
        slot_bytes = max((layers[layer] for layer in streamed), default=0)
        n_bytes = sum(layers[layer] for layer in streamed)
        yield ResidencyPlan(streamed, n_slots, slot_bytes, others + sum(layers) - n_bytes, n_bytes)


def _but_some(layers: Sequence[int], n_left: int) -> list[int]:
    """These layers without `n_left` of them that lie evenly between the others, so that reading never pauses."""
    n = len(layers)
    return [layer for place, layer in enumerate(layers) if (place + 1) * n_left // n == place * n_left // n]

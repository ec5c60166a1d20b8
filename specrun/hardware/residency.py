"""Which layers stay in RAM and which are read again in every pass, where the target does not fit into RAM.

The streamed layers take turns in a few slots of memory (`specrun/llama/streaming/`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from specrun.display_text import size_text
from specrun.hardware.memory import margin_bytes
from specrun.hardware.placement import Placement

FEWEST_SLOTS = 2  # a slot is computed while the next is filled

ResidencyMode = Literal["ring", "experts", "off"]


@dataclass(frozen=True)
class RingSettings:
    """How streamed layers are read. Of the other ways that `specrun tune` timed before none was faster
    (docs/streaming.md).
    """

    n_readers: int = 2  # threads, so that a request is waiting while the disk serves another
    request_bytes: int = 4 * 2**20  # of one request, in whole pages; far above what a disk needs to reach its rate


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

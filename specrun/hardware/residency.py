"""Which layers stay in RAM and which are read again in every pass, where the target does not fit into RAM.

The streamed layers take turns in a few slots of memory (`specrun/llama/streaming/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specrun.hardware.placement import Placement
from specrun.units import size_text

N_SLOTS = 2  # one is computed while the next is filled; further ones would take memory from resident layers

# RAM that is left free for the rest of this process, for the page cache of programs and libraries, and for whatever
# else runs: a share of what is available, and the least bytes. Chosen by hand; some systems end the largest process
# when less than 10 % are available (earlyoom's default).
_MARGIN_SHARE = 0.12
_LEAST_MARGIN = 64_000_000

ResidencyMode = Literal["ring", "off"]


@dataclass(frozen=True)
class Residency:
    """How the target's weights in RAM are held, as reports say it. All numbers are 0 with mode `off`."""

    mode: ResidencyMode = "off"  # ring: specrun streams what does not fit; off: llama.cpp holds all weights its own way
    resident_bytes: int = 0  # weights that stay in memory
    streamed_bytes: int = 0  # weights that every pass reads
    n_slots: int = 0
    slot_bytes: int = 0
    locked: bool = False  # whether resident weights and slots are locked into memory, so that they are never swapped

    def __str__(self) -> str:
        if self.mode == "off":
            return "held as llama.cpp holds them"
        held = "locked in RAM" if self.locked else "in RAM (not locked, so swap may take them: `ulimit -l` is too low)"
        slots = f"{self.n_slots} slots of {size_text(self.slot_bytes)}"
        return f"{size_text(self.resident_bytes)} {held}, {size_text(self.streamed_bytes)} streamed through {slots}"


@dataclass(frozen=True)
class ResidencyPlan:
    """Which layers are streamed."""

    streamed: tuple[int, ...]  # indices of the layers, ascending; none if all weights fit
    n_slots: int
    slot_bytes: int  # of the largest streamed layer
    resident_bytes: int
    streamed_bytes: int


def room_for_weights(placement: Placement) -> int:
    """Bytes of RAM that the target's weights may take beside caches, buffers, the draft and a margin."""
    ram = placement.ram
    margin = max(int(ram.free_bytes * _MARGIN_SHARE), _LEAST_MARGIN)
    beside = sum(n_bytes for part, n_bytes in ram.parts.items() if part not in ("target", "experts"))
    return max(ram.free_bytes - beside - margin, 0)


def plan_residency(layers: Sequence[int], others: int, room: int, n_slots: int = N_SLOTS) -> ResidencyPlan | None:
    """As many resident layers as fit into `room` bytes, spread evenly; None if not even all layers can be streamed.

    layers: bytes of each layer. others: bytes of all weights outside the layers, which always stay.
    """
    for n_resident in range(len(layers), -1, -1):
        streamed = [layer for layer in range(len(layers)) if not _stays(layer, n_resident, len(layers))]
        slot_bytes = max((layers[layer] for layer in streamed), default=0)
        streamed_bytes = sum(layers[layer] for layer in streamed)
        resident_bytes = others + sum(layers) - streamed_bytes
        if resident_bytes + n_slots * slot_bytes <= room:
            return ResidencyPlan(tuple(streamed), n_slots, slot_bytes, resident_bytes, streamed_bytes)
    return None


def _stays(layer: int, n_resident: int, n_layers: int) -> bool:
    """Whether this layer is one of `n_resident` that lie evenly between the others, so that reading never pauses."""
    return (layer + 1) * n_resident // n_layers > layer * n_resident // n_layers

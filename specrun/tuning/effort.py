"""How much a run of `specrun tune` measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import MAX_BUDGET, Plan

EffortName = Literal["quick", "default", "thorough"]


@dataclass(frozen=True)
class Effort:
    """Bounds of what a run measures."""

    seconds: float  # about how long all stages after loading take together
    largest: int  # most nodes of a tree
    rounds: int  # rounds of the cost tables
    n_positions: int  # most positions recorded behind each calibration text
    n_tokens: int  # most tokens written behind each validation text

    @property
    def largest_plan(self) -> Plan:
        """A plan that the contexts must have room for."""
        return SPECEXEC.plan(min(self.largest, MAX_BUDGET), 16)


EFFORTS: dict[EffortName, Effort] = {
    "quick": Effort(40, 128, 3, 32, 48),
    "default": Effort(140, 256, 5, 64, 96),
    "thorough": Effort(1200, 512, 9, 192, 192),
}

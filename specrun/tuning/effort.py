"""How much a run of `specrun tune` may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.plan import MAX_BUDGET, Plan

Effort = Literal["quick", "default", "thorough"]


@dataclass(frozen=True)
class Budget:
    """What a run may take. seconds: of all stages behind the loading, about. largest: nodes of a tree. rounds: of the
    cost tables. n_positions: recorded behind every text. n_tokens: written behind every text to validate a plan.
    """

    seconds: float
    largest: int
    rounds: int
    n_positions: int
    n_tokens: int


BUDGETS: dict[Effort, Budget] = {
    "quick": Budget(40, 128, 3, 48, 48),
    "default": Budget(150, 256, 5, 96, 96),
    "thorough": Budget(1200, 512, 9, 192, 192),
}


def largest_plan(effort: Effort) -> Plan:
    """A plan that the contexts must hold."""
    return SPECEXEC.plan(min(BUDGETS[effort].largest, MAX_BUDGET), 16)

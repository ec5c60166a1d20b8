"""How fast a plan is expected to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specrun.speculation.plan import Plan


@dataclass(frozen=True)
class ExpectedPlan:
    """A plan, and the rate that measurements let expect of it.

    plan: the plan.
    tokens_per_second: its expected rate.
    error: the standard error of that rate, in tokens per second.
    """

    plan: Plan
    tokens_per_second: float
    error: float

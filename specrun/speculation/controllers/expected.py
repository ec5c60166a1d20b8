"""How fast a plan is expected to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specrun.speculation.method import Plan

# The rate of a plan of which nothing is known, relative to plain decoding's, and its standard error, by whether it uses
# a draft model and whether it uses draft sources. Chosen in the simulations of tests/speculation/controllers.
_UNTRIED = {(True, True): (1.3, 0.1), (True, False): (1.15, 0.1), (False, True): (1.05, 0.05)}


@dataclass(frozen=True)
class ExpectedPlan:
    """A plan, and the rate that measurements let expect of it."""

    plan: Plan
    tokens_per_second: float  # its expected rate
    error: float  # the standard error of that rate, in tokens per second


def untried(plans: Sequence[Plan], plain: float = 1.0) -> list[ExpectedPlan]:
    """What is expected of plans of which nothing is known. plain: tokens per second of plain decoding."""
    rates = [(plan, *_UNTRIED[plan.method.needs_draft, bool(plan.method.sources)]) for plan in plans if plan.drafts]
    return [ExpectedPlan(plan, rate * plain, error * plain) for plan, rate, error in rates]

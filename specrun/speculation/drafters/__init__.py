"""Drafters: what proposes token trees. One file each; `drafter_for` gives the one of a plan."""

from __future__ import annotations

from specrun.sampling import Sampler
from specrun.speculation.drafters.base import Drafter, DraftLimits, DraftModel, DraftNode
from specrun.speculation.drafters.chain import ChainDrafter
from specrun.speculation.drafters.specexec import SpecExecDrafter
from specrun.speculation.plan import Plan

__all__ = ["ChainDrafter", "DraftLimits", "DraftModel", "DraftNode", "Drafter", "SpecExecDrafter", "drafter_for"]

# Commits the most tokens a pass of those tried, 7 to 12 % above the paper's 1.0 (scripts/bench_growth.py).
_GREEDY_SHARPNESS = 1.5


def drafter_for(plan: Plan, model: DraftModel, sampler: Sampler) -> Drafter | None:
    """The drafter that a plan asks for, or None for `off` (and for a budget that leaves no node to draft)."""
    if plan.method == "off" or plan.depth == 0:
        return None
    if plan.method == "chain":
        return ChainDrafter(model, sampler)
    is_greedy = sampler.parameters.temperature == 0
    return SpecExecDrafter(model, sampler, sharpness=_GREEDY_SHARPNESS if is_greedy else 1.0)

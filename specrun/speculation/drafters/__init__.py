"""Drafters: what proposes token trees. One file each; `drafter_for` gives the one of a plan."""

from __future__ import annotations

from specrun.sampling import Sampler
from specrun.speculation.drafters.base import Drafter, DraftLimits, DraftModel, DraftNode
from specrun.speculation.drafters.chain import ChainDrafter
from specrun.speculation.drafters.cost_aware import CostAwareDrafter
from specrun.speculation.drafters.growth import CandidateSource, ModelCandidates, TreeGrowth
from specrun.speculation.drafters.specexec import SpecExecDrafter
from specrun.speculation.guide import Guide
from specrun.speculation.plan import Plan

__all__ = [
    "CandidateSource",
    "ChainDrafter",
    "CostAwareDrafter",
    "DraftLimits",
    "DraftModel",
    "DraftNode",
    "Drafter",
    "ModelCandidates",
    "SpecExecDrafter",
    "TreeGrowth",
    "drafter_for",
    "sharpness_at",
]

# Commits the most tokens a pass of those tried, 7 to 12 % above the paper's 1.0 (scripts/bench_growth.py).
_GREEDY_SHARPNESS = 1.5


def sharpness_at(temperature: float) -> float:
    """The sharpness of SpecExec's scores that commits most."""
    return _GREEDY_SHARPNESS if temperature == 0 else 1.0


def drafter_for(plan: Plan, model: DraftModel, sampler: Sampler, guide: Guide | None = None) -> Drafter | None:
    """The drafter that a plan asks for, or None for `off` (and for a budget that leaves no node to draft).

    guide: what an adaptive plan is weighed with; it needs one.
    """
    if plan.method == "off" or plan.depth == 0:
        return None
    if plan.method == "chain":
        return ChainDrafter(model, sampler)
    source = ModelCandidates(model, sampler)
    if plan.method == "adaptive":
        if guide is None:
            raise ValueError("an adaptive plan needs cost tables")
        return CostAwareDrafter(source, guide)
    return SpecExecDrafter(source, sharpness_at(sampler.parameters.temperature))

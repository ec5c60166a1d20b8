"""Drafters: what proposes token trees. One file each; `METHODS` of `specrun.speculation.plan` names their plans."""

from __future__ import annotations

from specrun.sampling import Sampler
from specrun.speculation.drafters.base import Drafter, DraftLimits, DraftModel, DraftNode
from specrun.speculation.drafters.chain import ChainDrafter
from specrun.speculation.drafters.specexec import SpecExecDrafter
from specrun.speculation.plan import Plan

__all__ = ["ChainDrafter", "DraftLimits", "DraftModel", "DraftNode", "Drafter", "SpecExecDrafter", "drafter_for"]


def drafter_for(plan: Plan, model: DraftModel, sampler: Sampler) -> Drafter | None:
    """The drafter that a plan asks for, or None for `off` (and for a budget that leaves no node to draft)."""
    if plan.method == "off" or plan.depth == 0:
        return None
    return ChainDrafter(model, sampler) if plan.method == "chain" else SpecExecDrafter(model, sampler)

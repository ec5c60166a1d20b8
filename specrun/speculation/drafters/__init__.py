"""Drafters: what proposes token trees. One file for each kind; `specrun.speculation.registry` names them."""

from specrun.speculation.drafters.chain import ChainDrafter
from specrun.speculation.drafters.cost_aware import CostAwareDrafter
from specrun.speculation.drafters.drafter import Drafter, DraftLimits, DraftModel, DraftNode
from specrun.speculation.drafters.growth import CandidateSource, ModelCandidates, TreeGrowth
from specrun.speculation.drafters.specexec import SpecExecDrafter, sharpness_at

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
    "sharpness_at",
]

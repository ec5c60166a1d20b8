"""Chains of the draft's own next tokens (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specrun.sampling import NO_TOKEN
from specrun.speculation.drafter import Draft, Drafter, DraftLimits, Growing
from specrun.speculation.growth import ModelCandidates, TreeGrowth, expandable_of
from specrun.speculation.method import Method
from specrun.speculation.tree import ROOT

# Chance that a drafted token is accepted, for scores: as of drafts of usual quality (`calibration`). People see it in
# drawn trees; no decision depends on it.
_CHANCE = 0.7


@dataclass(frozen=True)
class ChainDrafter(Drafter):
    """Drafts one path, in which each token is what the sampler would choose from the draft's logits."""

    source: ModelCandidates

    def grow(self, tokens: Sequence[int], limits: DraftLimits) -> Growing:
        growth = TreeGrowth(tokens)
        node = ROOT
        for depth in range(1, min(limits.depth, limits.budget - 1) + 1):
            if not expandable_of(growth, self.source, [node], 1):
                break
            yield growth.drafted([node])
            if (token := self.source.favourite(growth, node)) == NO_TOKEN:
                break
            node = growth.add(token, node, depth * math.log(_CHANCE), math.nan)
        return Draft(growth.tree(limits))


CHAIN = Method(
    name="chain",
    kind="chain",
    paper="Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318",
    pays="where a pass over a few tokens costs little more than one over a single token, but a tree costs too much",
    drafter=lambda drafting: ChainDrafter(drafting.need_source()),
    label=lambda plan: f"chain of {plan.depth}",
    options=lambda plan: f"--speculate chain --depth {plan.depth}",
)

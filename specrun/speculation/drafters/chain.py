"""A chain: the draft's own next token, again and again (Leviathan et al., 2211.17192; Chen et al., 2302.01318)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specrun.sampling import NO_TOKEN
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.growth import ChainSource, TreeGrowth
from specrun.speculation.method import Method
from specrun.speculation.plan import Plan
from specrun.speculation.planning.plan_space import PlanSpace
from specrun.speculation.tree import ROOT, TokenTree

_CHANCE = 0.7  # that a drafted token is accepted; a chain's size does not depend on it
_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # that tune considers


class ChainDrafter:
    """Drafts a tree of one path, each token the one that the sampler would take from the draft's logits."""

    def __init__(self, source: ChainSource) -> None:
        self._source = source

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A chain of at most `limits.depth` drafted tokens."""
        growth = TreeGrowth(tokens)
        node = ROOT
        for depth in range(1, min(limits.depth, limits.budget - 1) + 1):
            if node != ROOT and self._source.expandable([growth.parents[node]]) == 0:
                break
            token = self._source.favourite(growth, node)
            if token == NO_TOKEN:
                break
            node = growth.add(token, node, depth * math.log(_CHANCE), math.nan)
        return growth.tree(limits)


def _candidates(space: PlanSpace) -> list[Plan]:
    return [CHAIN.plan(depth=depth) for depth in _DEPTHS if depth < space.largest and space.may_pay(depth + 1, depth)]


CHAIN = Method(
    name="chain",
    kind="chain",
    paper="Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318",
    pays="where a pass over a few tokens costs little more than over one, and a wider tree too much",
    drafter=lambda drafting: ChainDrafter(drafting.need_source()),
    candidates=_candidates,
    label=lambda plan: f"chain of {plan.depth}",
    options=lambda plan: f"--speculate chain --depth {plan.depth}",
)

"""Trees of one shape: Sequoia's (arXiv 2402.12374), its i-th child of a node being the draft's i-th candidate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.drafter import DraftLimits
from specrun.speculation.growth import CandidateSource, TreeGrowth
from specrun.speculation.method import ACCEPTANCE, DRAFT, Method
from specrun.speculation.plan import Plan
from specrun.speculation.planning import sequoia
from specrun.speculation.planning.plan_space import PlanSpace
from specrun.speculation.shape import MAX_LEAVES, TreeShape
from specrun.speculation.tree import ROOT, TokenTree

MAX_DEPTH = 24  # of the trees that the dynamic program considers


class StaticDrafter:
    """Fills a shape with the draft's candidates, best first, whatever it thinks of them."""

    def __init__(self, source: CandidateSource, shape: TreeShape) -> None:
        self._source = source
        self._shape = shape

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """The shape, cut to `limits`; a node with fewer candidates than the shape wants has fewer children."""
        shape = self._shape.cut(limits.budget, limits.depth)
        growth = TreeGrowth(tokens)
        places = {ROOT: ROOT}  # node of the growth -> node of the shape
        level = [ROOT] if shape.n_nodes > 1 else []
        while level:
            below: list[int] = []
            for node, candidates in zip(level, self._source.children(growth, level), strict=True):
                shares = candidates.shares
                for rank, place in enumerate(shape.children[places[node]][: len(candidates.tokens)]):
                    # Only the order matters: siblings by rank, and never rising along a path.
                    score = growth.scores[node] - np.log(rank + 2)
                    child = growth.add(int(candidates.tokens[rank]), node, float(score), float(shares[rank]))
                    places[child] = place
                    below.append(child)
            level = [node for node in below if shape.children[places[node]]]
            level = level[: self._source.expandable([growth.parents[node] for node in level])]
        return growth.tree(limits)


def _candidates(space: PlanSpace) -> list[Plan]:
    shape = sequoia.choose(space.acceptance, space.costs, space.ctx, space.largest, MAX_DEPTH, MAX_LEAVES).shape
    return [SEQUOIA_MATCH.plan().shaped(shape)] if shape.n_nodes > 1 else []


SEQUOIA_MATCH = Method(
    name="sequoia-match",
    kind="tree",
    paper="Sequoia's trees, arXiv 2402.12374; shared noise, 2408.07978",
    pays="as specexec, where growing a tree node by node takes too long",
    drafter=lambda drafting: StaticDrafter(drafting.need_source(), drafting.need_shape()),
    needs=(DRAFT, ACCEPTANCE),
    candidates=_candidates,
    options=lambda _: "--method sequoia-match (its tree follows from the profile)",
)

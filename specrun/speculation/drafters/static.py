"""Trees of one shape: Sequoia's (arXiv 2402.12374), its i-th child of a node being the draft's i-th candidate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.drafters.drafter import DraftLimits
from specrun.speculation.drafters.growth import CandidateSource, TreeGrowth
from specrun.speculation.shape import TreeShape
from specrun.speculation.tree import ROOT, TokenTree


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

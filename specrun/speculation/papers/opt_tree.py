"""OPT-Tree (arXiv 2406.17276): the n likeliest nodes of all levels, deepened while the expected length still grows.

Each level expands its likeliest nodes; the tree is the best `budget` nodes seen. It ends when a level has raised the
expected accepted length by less than a threshold, which the paper wants between the ratio of a draft pass's time to a
target pass's, and 1.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from specrun.speculation.drafter import DraftLimits
from specrun.speculation.growth import CandidateSource, TreeGrowth, offer_children
from specrun.speculation.planning.guide import Guide
from specrun.speculation.tree import ROOT, TokenTree

_THRESHOLD = 0.2  # where pass times are not known


class OptTreeDrafter:
    """Grows the tree of the largest expected length by the draft's own probabilities.

    guide: gives the threshold, a draft pass's time over a target pass's.
    """

    def __init__(self, source: CandidateSource, guide: Guide | None = None) -> None:
        self._source = source
        self._guide = guide

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A tree within `limits`, of the best nodes seen."""
        growth = TreeGrowth(tokens)
        level, expected = [ROOT], 0.0
        for _ in range(limits.depth if limits.budget > 1 else 0):
            below = offer_children(growth, self._source, level)
            before, expected = expected, _expected_length(growth.scores, limits.budget)
            if expected - before < self._threshold(len(tokens), len(level)):
                break
            # Below a node that is not among the best there is none that is.
            kept = set(growth.best(range(len(growth.scores)), limits.budget))
            best = growth.best(kept & set(below), limits.width)
            level = best[: self._source.expandable([growth.parents[n] for n in best])]
            if not level:
                break
        return growth.tree(limits)

    def _threshold(self, ctx: int, width: int) -> float:
        if self._guide is None:
            return _THRESHOLD
        return min(self._guide.costs.level_ms(width, ctx) / self._guide.plain_ms(ctx), 1.0)


def _expected_length(scores: Sequence[float], budget: int) -> float:
    """Sum of the chances of the best `budget` nodes; scores: their logarithms."""
    return float(np.exp(heapq.nlargest(budget, scores)).sum())

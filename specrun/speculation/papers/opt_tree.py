"""OPT-Tree (arXiv 2406.17276): the likeliest nodes of all levels, deepened while the expected length still grows.

The likeliest nodes of each level are expanded, and the tree consists of the best `budget` nodes offered. Drafting ends
when a level raised the expected accepted length by less than a threshold. By the paper the threshold lies between 1 and
the ratio of a draft pass's time to a target pass's.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from specrun.speculation.drafter import Draft, DraftLimits
from specrun.speculation.growth import CandidateSource, TreeGrowth, expandable_of, offer_children
from specrun.speculation.planning.guide import Guide
from specrun.speculation.tree import ROOT

_THRESHOLD = 0.2  # tokens; used without measured pass times


class OptTreeDrafter:
    """Grows the tree with the largest expected accepted length by the draft's own probabilities."""

    def __init__(self, source: CandidateSource, guide: Guide | None = None) -> None:
        """guide: if given, the threshold is a draft pass's time over a target pass's."""
        self._source = source
        self._guide = guide

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> Draft:
        """The tree of the best nodes that were offered, within `limits`."""
        growth = TreeGrowth(tokens)
        level, expected = [ROOT], 0.0
        for _ in range(limits.depth if limits.budget > 1 else 0):
            below = offer_children(growth, self._source, level)
            before, expected = expected, _expected_length(growth.scores, limits.budget)
            if expected - before < self._threshold(len(tokens), len(level)):
                break
            # Only nodes among the best can have descendants among them.
            kept = set(growth.best(range(len(growth.scores)), limits.budget))
            best = growth.best(kept & set(below), limits.width)
            level = expandable_of(growth, self._source, best, limits.width)
            if not level:
                break
        return Draft(growth.tree(limits))

    def _threshold(self, ctx: int, width: int) -> float:
        if self._guide is None:
            return _THRESHOLD
        levels = self._guide.levels_row(ctx)
        return min(float(levels[min(width, len(levels) - 1)]) / self._guide.plain_ms(ctx), 1.0)


def _expected_length(scores: Sequence[float], budget: int) -> float:
    """Sum of the chances of the best `budget` nodes. scores: log chances of all nodes."""
    return float(np.exp(heapq.nlargest(budget, scores)).sum())

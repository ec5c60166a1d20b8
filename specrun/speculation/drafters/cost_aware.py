"""Best-first growth that stops when more drafting, or one more node, costs more than it can bring.

The growth is SpecExec's (arXiv 2406.02532), with two changes. A node's score is the calibrated chance that it is
accepted, not the draft's probability. And how many nodes are expanded, whether there is another level, and how many
nodes go to the target follow from measured pass times: each is taken as long as the tokens it is expected to add are
more than the run's rate would have brought in the same time (`Guide`). OPT-Tree (2406.17276) stops at a fixed
threshold instead; the threshold here is the machine's.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from specrun.sampling import Candidates
from specrun.speculation.costs import Milliseconds
from specrun.speculation.drafters.base import DraftLimits
from specrun.speculation.drafters.growth import CandidateSource, TreeGrowth
from specrun.speculation.guide import Guide
from specrun.speculation.tree import ROOT, TokenTree

_LEAST_CHANCE = 1e-3


class CostAwareDrafter:
    """Grows the tree whose expected tokens are worth its milliseconds."""

    def __init__(self, source: CandidateSource, guide: Guide) -> None:
        self._source = source
        self._guide = guide

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A tree within `limits`; the root alone if no node is worth its cost."""
        growth = TreeGrowth(tokens)
        if limits.budget < 2 or limits.depth < 1:
            return growth.tree(limits)
        target_row = self._guide.target_row(len(tokens))
        tables_row = self._guide.costs.levels_row(len(tokens))
        levels_row = tables_row * self._guide.draft_slowness
        self._guide.expected_draft_ms = 0.0
        level, unexpanded = [ROOT], set[int]()
        for n_passes in range(1, limits.depth + 1):
            self._guide.expected_draft_ms += float(tables_row[min(len(level), len(tables_row) - 1)])
            for node, candidates in zip(level, self._source.children(growth, level), strict=True):
                unexpanded.update(self._add_children(growth, node, candidates))
            if n_passes == limits.depth:
                break
            level = self._worth_expanding(growth, unexpanded, limits, target_row, levels_row)
            if not level:
                break
            unexpanded.difference_update(level)
        chances = np.sort(np.exp(growth.scores))[::-1]
        n = self._best_size(chances, limits, target_row)
        return growth.tree(DraftLimits(n, limits.depth, limits.width, limits.leaves))

    def _add_children(self, growth: TreeGrowth, node: int, candidates: Candidates) -> list[int]:
        own = candidates.shares
        chances = self._guide.calibration.chances(growth.depths[node] + 1, own)
        scores = growth.scores[node] + np.log(np.maximum(chances, 1e-9))
        least = np.log(_LEAST_CHANCE)
        return [
            growth.add(token, node, score, probability)
            for token, score, probability in zip(candidates.tokens.tolist(), scores.tolist(), own.tolist(), strict=True)
            if score >= least
        ]

    def _worth_expanding(
        self,
        growth: TreeGrowth,
        unexpanded: set[int],
        limits: DraftLimits,
        target_row: Milliseconds,
        levels_row: Milliseconds,
    ) -> list[int]:
        """The nodes whose children are expected to be worth another draft pass, best first."""
        deep = [n for n in unexpanded if growth.depths[n] < limits.depth]
        best = heapq.nsmallest(min(limits.width, len(levels_row) - 1), deep, key=lambda n: (-growth.scores[n], n))
        best = best[: self._source.expandable([growth.parents[n] for n in best])]
        if not best:
            return []
        rate = self._guide.rate
        chances = np.sort(np.exp(growth.scores))[::-1]
        now = self._best_size(chances, limits, target_row)
        node_cost = rate * _marginal_ms(target_row, now + limits.pending)
        # A new node takes the place of the worst that would otherwise be kept, when the budget is full.
        floor = max(node_cost, float(chances[limits.budget - 1]) if len(chances) >= limits.budget else 0.0)
        gains = []
        for node in best:
            reached = float(np.exp(growth.scores[node]))
            gains.append(self._guide.calibration.expected_gain(growth.depths[node] + 1, reached, floor))
        worth = np.cumsum(gains) - rate * levels_row[1 : len(best) + 1]
        width = int(worth.argmax())
        return best[: width + 1] if worth[width] > 0 else []

    def _best_size(self, chances: Milliseconds, limits: DraftLimits, target_row: Milliseconds) -> int:
        """Nodes, root included, that are worth a pass. chances: of all nodes offered, best (the root, 1) first."""
        most = min(len(chances), limits.budget, len(target_row) - 1 - limits.pending)
        sizes = np.array([n - limits.pending for n in self._guide.costs.target.sizes], np.intp)
        sizes = np.append(sizes[(sizes >= 1) & (sizes <= most)], max(most, 1))
        value = np.cumsum(chances)[sizes - 1] - self._guide.rate * target_row[sizes + limits.pending]
        return int(sizes[value.argmax()])


def _marginal_ms(target_row: Milliseconds, n: int) -> float:
    """Least milliseconds a token by which a pass over `n` could grow."""
    larger = target_row[n + 1 :]
    if not len(larger):
        return 0.0
    return max(float(((larger - target_row[n]) / np.arange(1, len(larger) + 1)).min()), 0.0)

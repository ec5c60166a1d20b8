"""Trees from sources that need no draft model, alone or below a tree in growth."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from specrun.speculation.drafters.drafter import DraftLimits
from specrun.speculation.drafters.growth import TreeGrowth
from specrun.speculation.planning.guide import Guide
from specrun.speculation.tree import ROOT, TokenTree

PER_NODE = 4  # guesses behind a node; later ones are hardly ever right
_LEAST_CHANCE = 0.04  # of a node, where pass times are not known
_LEAST_OFFERED = 0.015  # where they are, and decide


class Guesses(Protocol):
    """What needs no draft model to guess."""

    def children(self, path: Sequence[int], count: int) -> list[tuple[int, float]]:
        """Tokens that could follow the committed text and `path`, with the chance of each, best first."""
        ...

    def behind(self, path: Sequence[int]) -> Guesses:
        """The same as they would be if `path` had been committed."""
        ...


def add_guesses(
    growth: TreeGrowth, sources: Guesses, nodes: Iterable[int], limits: DraftLimits, least_chance: float
) -> None:
    """Offer what the sources guess behind `nodes`, which have no children yet, and behind that again, best first, at
    most a budget of nodes.
    """
    waiting = [(-growth.scores[node], node) for node in nodes]
    heapq.heapify(waiting)
    least = math.log(least_chance)
    most = len(growth.tokens) + limits.budget
    while waiting and len(growth.tokens) < most:
        _, node = heapq.heappop(waiting)
        if growth.depths[node] >= limits.depth:
            continue
        for token, chance in sources.children(growth.path(node), PER_NODE):
            score = growth.scores[node] + math.log(max(chance, 1e-9))
            if score >= least:
                heapq.heappush(waiting, (-score, growth.add(token, node, score, math.nan)))


class GuessedDrafter:
    """The tree of the likeliest guesses; the root alone where none is likely enough.

    guide: pass times, if they are known, that say how many nodes are worth their time.
    """

    def __init__(self, sources: Guesses, guide: Guide | None = None) -> None:
        self._sources = sources
        self._guide = guide

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A tree within `limits`."""
        growth = TreeGrowth(tokens)
        if limits.budget < 2 or limits.depth < 1:
            return growth.tree(limits)
        least = _LEAST_OFFERED if self._guide else _LEAST_CHANCE
        add_guesses(growth, self._sources, [ROOT], limits, least)
        if self._guide is None:
            return growth.tree(limits)
        chances, row = np.sort(np.exp(growth.scores))[::-1], self._guide.target_row(len(tokens))
        n = self._guide.best_size(chances, row, limits.budget, limits.pending)
        return growth.tree(DraftLimits(n, limits.depth, limits.width, limits.leaves))

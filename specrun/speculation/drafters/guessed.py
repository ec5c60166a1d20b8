"""Trees from sources that need no draft model, alone or below a tree in growth."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from specrun.speculation.drafter import DraftLimits, Guesses
from specrun.speculation.growth import TreeGrowth
from specrun.speculation.method import Drafting, Method
from specrun.speculation.planning.guide import Guide
from specrun.speculation.tree import ROOT, TokenTree

# The sources that draw on the text itself, on what the target proposed, and on what the user names, as far as there
# are any.
ALL_SOURCES = ("suffix-automaton", "lookahead", "token-recycling", "rest", "history")
COPIED_NODES = 32  # most nodes of a tree from sources where pass times are known: as many as a copied line has tokens
PER_NODE = 4  # guesses behind a node; later ones are hardly ever right
_LEAST_CHANCE = 0.04  # of a node, where pass times are not known
_LEAST_OFFERED = 0.015  # where they are, and decide


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
        return growth.tree(replace(limits, budget=n))


def guessed(drafting: Drafting) -> GuessedDrafter:
    """The drafter of the plan's sources."""
    return GuessedDrafter(drafting.need_guesses(), drafting.guide)


DRAFTLESS = Method(
    name="draftless",
    kind="draft source",
    paper="this project; all sources together",
    pays="where there is no draft model",
    drafter=guessed,
    needs=(),
    sources=ALL_SOURCES,
)

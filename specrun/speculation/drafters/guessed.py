"""Trees from draft sources, which need no draft model: alone, or as parts of a tree that a draft model grows."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from specrun.speculation.drafter import Draft, Drafter, DraftLimits, Growing
from specrun.speculation.growth import TreeGrowth
from specrun.speculation.method import Drafting, Method
from specrun.speculation.planning.guide import Guide
from specrun.speculation.sources.source_set import SourceSet
from specrun.speculation.tree import ROOT

ALL_SOURCES = ("suffix-automaton", "lookahead", "token-recycling")
COPIED_NODES = 32  # most nodes of a tree where pass times are known: about as many as a copied line has tokens
# Least chance of a node where pass times are not known. A further token takes 0.01 of a plain pass where weights are
# streamed and 0.3 of it on two cores in RAM (docs/benchmarks/tune.md); this lies between them.
_LEAST_CHANCE = 0.04
_LEAST_OFFERED = 0.015  # least chance of a node where pass times decide how many nodes stay


def add_guesses(
    growth: TreeGrowth, sources: SourceSet, nodes: Iterable[int], limits: DraftLimits, least_chance: float
) -> None:
    """Offer guesses below `nodes`, which have no children yet, then below these guesses, and so on, best first.

    At most `limits.budget` nodes are added, each with at least `least_chance`.
    """
    waiting = [(-growth.scores[node], node) for node in nodes]
    heapq.heapify(waiting)
    least = math.log(least_chance)
    most = len(growth.tokens) + limits.budget
    while waiting and len(growth.tokens) < most:
        _, node = heapq.heappop(waiting)
        if growth.depths[node] >= limits.depth:
            continue
        for token, chance in growth.guesses(sources, node):
            score = growth.scores[node] + math.log(max(chance, 1e-9))
            if score >= least:
                heapq.heappush(waiting, (-score, growth.add(token, node, score, math.nan)))


@dataclass(frozen=True)
class GuessedDrafter(Drafter):
    """Drafts the tree of the likeliest guesses, or the root alone if none is likely enough.

    guide: cost tables, by which the tree gets as many nodes as pay; None for a fixed least chance.
    """

    sources: SourceSet
    guide: Guide | None = None

    def grow(self, tokens: Sequence[int], limits: DraftLimits) -> Growing:
        growth = TreeGrowth(tokens)
        if limits.budget >= 2 and limits.depth >= 1:
            least = _LEAST_CHANCE
            if self.guide:
                row = self.guide.target_row(len(tokens))
                least = max(self.guide.least_chance(row, limits.pending), _LEAST_OFFERED)
            add_guesses(growth, self.sources, [ROOT], limits, least)
            if self.guide:
                chances = growth.chances(limits.leaves)
                n, _ = self.guide.best_size(chances, row, limits.budget, limits.pending, asked_draft=False)
                limits = replace(limits, budget=n)
        yield from ()  # no draft pass
        return Draft(growth.tree(limits))


def _method(name: str, paper: str, pays: str, *sources: str) -> Method:
    """A method that uses these draft sources alone."""

    def drafter(drafting: Drafting) -> GuessedDrafter:
        assert drafting.guesses, "a method of draft sources has them"
        return GuessedDrafter(drafting.guesses, drafting.guide)

    return Method(name, "draft source", paper, pays, drafter, needs=(), sources=sources)


DRAFTLESS = _method(
    "draftless",
    "this project; all draft sources together",
    "where there is no draft model, or it is too slow",
    *ALL_SOURCES,
)
SINGLE_SOURCES = (
    _method(
        "suffix-automaton", "SAM decoding, arXiv 2411.10666",
        "where the answer copies from the prompt or itself and there is no draft model", "suffix-automaton",
    ),
    _method(
        "token-recycling", "Token Recycling, arXiv 2408.08696",
        "where passes over a few tokens cost little and there is no draft model", "token-recycling",
    ),
    _method(
        "lookahead", "Lookahead's n-gram pool, arXiv 2402.02057; Ouroboros's phrases, 2402.13720",
        "where the target repeats itself and there is no draft model", "lookahead",
    ),
)  # fmt: skip

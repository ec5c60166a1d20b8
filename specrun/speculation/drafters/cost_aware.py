"""Best-first growth that stops when more drafting, or one more node, costs more than it can bring.

The growth is SpecExec's (arXiv 2406.02532), with two changes. A node's score is the calibrated chance that it is
accepted, not the draft's probability. And how many nodes are expanded, whether there is another level, and how many
nodes go to the target follow from measured pass times: each is taken as long as the tokens it is expected to add are
more than the run's rate would have brought in the same time (`Guide`). OPT-Tree (2406.17276) stops at a fixed
threshold instead; the threshold here is the machine's.

Sources that need no draft model may join in: what they guess is offered before the draft is asked, for nothing, and a
draft pass has to be worth its time beside that. What both say of a position is one distribution (`pooling`), so a guess
that the draft confirms is followed further, and one that it does not list makes room. As the sources draft for the
target, so they do for the draft: of what they guessed, one draft pass looks at several levels at once (a cascade; CS
Drafting, 2312.11462).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specrun.sampling import Candidates
from specrun.speculation.drafter import DraftLimits, Guesses
from specrun.speculation.drafters.guessed import ALL_SOURCES, DRAFTLESS, PER_NODE, add_guesses
from specrun.speculation.growth import CandidateSource, TreeGrowth
from specrun.speculation.method import DRAFT, PROFILE, Drafting, Method
from specrun.speculation.plan import Plan
from specrun.speculation.planning.costs import Milliseconds
from specrun.speculation.planning.guide import Guide
from specrun.speculation.planning.plan_space import PlanSpace
from specrun.speculation.planning.pooling import Opinion, pooled
from specrun.speculation.tree import ROOT, TokenTree

_LEAST_SCORE = math.log(1e-3)  # of a node that is offered
_PASSED_OVER = 0.25  # a draft model lists many candidates, so what it does not list it has looked at
_KNOWN = 0.5  # of what sources offer behind a node that the draft need not add; its opinion of it is of use as well

_DEPTH = 16  # of the trees that tune considers
_MOST_WIDTH = 16  # nodes of a draft pass that tune considers


class CostAwareDrafter:
    """Grows the tree whose expected tokens are worth its milliseconds."""

    def __init__(self, source: CandidateSource, guide: Guide, sources: Guesses | None = None) -> None:
        self._source = source
        self._guide = guide
        self._sources = sources

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A tree within `limits`; the root alone if no node is worth its cost."""
        growth = TreeGrowth(tokens)
        self._guide.expected_draft_ms = 0.0
        if limits.budget < 2 or limits.depth < 1:
            return growth.tree(limits)
        target_row = self._guide.target_row(len(tokens))
        tables_row = self._guide.costs.levels_row(len(tokens))
        levels_row = tables_row * self._guide.draft_slowness
        # The nodes behind those that the draft has been asked about.
        level, unexpanded = [ROOT], set[int]()
        if self._sources:
            self._guess(growth, [ROOT], limits)
            level = self._worth_expanding(growth, {ROOT}, limits, target_row, levels_row)
        for n_passes in range(1, limits.depth + 1):
            if not level:
                break
            self._guide.expected_draft_ms += float(tables_row[min(len(level), len(tables_row) - 1)])
            for node, candidates in zip(level, self._source.children(growth, level), strict=True):
                new = self._add_children(growth, node, candidates)
                if self._sources:
                    self._guess(growth, new, limits)
                unexpanded.update(growth.children[node])
            unexpanded.difference_update(level)
            if n_passes == limits.depth:
                break
            level = self._worth_expanding(growth, unexpanded, limits, target_row, levels_row)
        chances = np.sort(np.exp(growth.scores))[::-1]
        n = self._guide.best_size(chances, target_row, limits.budget, limits.pending)
        return growth.tree(replace(limits, budget=n))

    def _guess(self, growth: TreeGrowth, nodes: Sequence[int], limits: DraftLimits) -> None:
        """Offer what the sources think of these nodes, as far as it may be among the best."""
        assert self._sources
        floor = max(growth.worst_kept(limits.budget), _LEAST_SCORE)
        worth = [node for node in nodes if growth.scores[node] > floor]
        add_guesses(growth, self._sources, worth, limits, float(np.exp(floor)))

    def _add_children(self, growth: TreeGrowth, node: int, candidates: Candidates) -> list[int]:
        """Offer the draft's candidates, and think again of what sources guessed there; returns the ids of new nodes."""
        tokens = candidates.tokens.tolist()
        shares = dict(zip(tokens, candidates.shares.tolist(), strict=True))
        own = self._guide.calibration.chances(growth.depths[node] + 1, candidates.shares)
        drafted = Opinion(dict(zip(tokens, own.tolist(), strict=True)), passed_over=_PASSED_OVER)
        guessed = Opinion(dict(self._sources.children(growth.path(node), PER_NODE)) if self._sources else {})
        new = []
        for token, chance in pooled([drafted, guessed]).items():
            score = growth.scores[node] + math.log(max(chance, 1e-9))
            share = shares.get(token, math.nan)
            known = growth.child(node, token)
            if known is not None:
                growth.probabilities[known] = share
                growth.rescore(known, score)
            elif score >= _LEAST_SCORE:
                new.append(growth.add(token, node, score, share))
        return new

    def _worth_expanding(
        self,
        growth: TreeGrowth,
        unexpanded: set[int],
        limits: DraftLimits,
        target_row: Milliseconds,
        levels_row: Milliseconds,
    ) -> list[int]:
        """The nodes whose children are expected to be worth another draft pass, best first."""
        best = _next(growth, unexpanded, limits.depth, min(limits.width, len(levels_row) - 1))
        if best != [ROOT]:
            best = best[: self._source.expandable([growth.parents[n] for n in best])]
        if not best:
            return []
        rate = self._guide.rate
        chances = np.sort(np.exp(growth.scores))[::-1]
        now = self._guide.best_size(chances, target_row, limits.budget, limits.pending)
        node_cost = rate * _marginal_ms(target_row, now + limits.pending)
        # A new node takes the place of the worst that would otherwise be kept, when the budget is full.
        floor = max(node_cost, float(chances[limits.budget - 1]) if len(chances) >= limits.budget else 0.0)
        gains = []
        for node in best:
            reached = float(np.exp(growth.scores[node]))
            # What is offered behind the node already, the draft adds in part only (scripts/bench_sources.py).
            offered = sum(np.exp(growth.scores[child]) for child in growth.children[node]) / reached
            gain = self._guide.calibration.expected_gain(growth.depths[node] + 1, reached, floor)
            gains.append((1.0 - _KNOWN * float(offered)) * gain)
        worth = np.cumsum(gains) - rate * levels_row[1 : len(best) + 1]
        width = int(worth.argmax())
        return best[: width + 1] if worth[width] > 0 else []


def _next(growth: TreeGrowth, unexpanded: set[int], depth: int, count: int) -> list[int]:
    """The `count` best nodes for the next draft pass, parents first. Behind a node that is among them and has guessed
    children already, the best of these may be, too: one, as the draft's sequences only part between passes.
    """
    waiting = [(-growth.scores[node], node) for node in unexpanded if growth.depths[node] < depth]
    heapq.heapify(waiting)
    best: list[int] = []
    while waiting and len(best) < count:
        _, node = heapq.heappop(waiting)
        best.append(node)
        if node == ROOT:
            break  # the first pass is for it alone
        for child in growth.best(growth.children[node], 1):
            if growth.depths[child] < depth:
                heapq.heappush(waiting, (-growth.scores[child], child))
    return best


def _marginal_ms(target_row: Milliseconds, n: int) -> float:
    """Least milliseconds a token by which a pass over `n` could grow."""
    larger = target_row[n + 1 :]
    if not len(larger):
        return 0.0
    return max(float(((larger - target_row[n]) / np.arange(1, len(larger) + 1)).min()), 0.0)


def _cost_aware(drafting: Drafting) -> CostAwareDrafter:
    return CostAwareDrafter(drafting.need_source(), drafting.need_guide(), drafting.guesses)


def _candidates(space: PlanSpace) -> list[Plan]:
    budget = space.largest_affordable
    return [ADAPTIVE.plan(budget, _DEPTH, max(1, min(space.draft_width, _MOST_WIDTH)))] if budget > 1 else []


def _label(plan: Plan) -> str:
    sources = ", with draft sources" if plan.method.sources else ""
    return f"adaptive tree of at most {plan.size}{sources}"


def _options(_plan: Plan) -> str:
    return "--speculate auto (the adaptive plan needs the profile's tables)"


MERGED = Method(
    name="merged",
    kind="planner",
    paper="this project; adaptive with all sources",
    pays="wherever adaptive does, and more where text is copied",
    drafter=_cost_aware,
    needs=(DRAFT, PROFILE),
    stops=True,
    sources=ALL_SOURCES,
    without_draft=DRAFTLESS,
    label=_label,
    options=_options,
)
ADAPTIVE = Method(
    name="adaptive",
    kind="planner",
    paper="this project; after SpecExec and OPT-Tree",
    pays="wherever any tree or chain does: each tree is as large as this machine makes worth it",
    drafter=_cost_aware,
    needs=(DRAFT, PROFILE),
    stops=True,
    candidates=_candidates,
    with_sources=MERGED,
    label=_label,
    options=_options,
)

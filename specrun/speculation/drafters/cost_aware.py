"""Best-first growth that stops when more drafting, or one more node, costs more than it is expected to bring.

The growth is SpecExec's (arXiv 2406.02532), with two changes. A node's score is the calibrated chance that it is
accepted, not the draft's probability. And measured pass times decide how many nodes are expanded, whether there is
another level, and how many nodes the target gets: each must be expected to add more tokens than the run's rate would
bring in the same time (`Guide`). OPT-Tree (arXiv 2406.17276) has a fixed threshold instead.

Draft sources may take part (docs/sources.md). Their guesses cost nothing, so they are offered before each draft pass,
which must then pay in addition to them, and which expands guesses of several levels at once (CS Drafting, arXiv
2312.11462). What draft and sources say of one position is pooled into one distribution (`pooled`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specrun.sampling import Candidates
from specrun.speculation.drafter import Draft, Drafter, DraftLimits, Growing
from specrun.speculation.drafters.guessed import ALL_SOURCES, DRAFTLESS, add_guesses
from specrun.speculation.growth import ModelCandidates, TreeGrowth, expandable_of
from specrun.speculation.method import DRAFT, PROFILE, Drafting, Method, Plan
from specrun.speculation.planning.costs import Milliseconds, marginal_ms
from specrun.speculation.planning.draft_times import MOST_WIDTH
from specrun.speculation.planning.guide import Guide
from specrun.speculation.sources.source_set import Expert, SourceSet, pooled
from specrun.speculation.tree import ROOT

# Least chance of a node that is offered. Half and twice of it change the mean rate by 1 %, which is chance
# (scripts/bench_machines.py, a 70B beside a GPU and a 1.8B on two cores, code and prose at T=0.8).
_LEAST_CHANCE = 1e-3
_LEAST_SCORE = math.log(_LEAST_CHANCE)
_CONFIRMED = 0.2  # a guess is offered with this share of the chance that pays, as the draft may confirm it
# `unnamed_factor` of the draft: it lists many candidates, so what it does not list is unlikely (docs/adr/0006).
_UNNAMED_FACTOR = 0.25
# The draft reads the same text that the sources copy from, so both may be wrong for one reason: as if they erred
# independently, paths of 50 copied tokens were followed of which 13 were right. Where little is copied, 0.4 and 1
# change the mean by 2 % (as above).
_TRUST = 0.8
# An expansion gains less by this share of the chances that sources already offer there (scripts/bench_sources.py).
_OFFERED_SHARE = 0.5

# Asking the sources for what follows one node took so many milliseconds of our own work (EPYC Zen 5, a busy machine
# twice that), and what they said came true with about this chance where a tree had room for it.
_ASKING_MS, _GUESSED = 0.03, 0.3


@dataclass(frozen=True)
class CostAwareDrafter(Drafter):
    """Grows the tree that is expected to gain most by the guide. The draft sources, if there are any, take part."""

    source: ModelCandidates
    guide: Guide
    sources: SourceSet | None = None

    def grow(self, tokens: Sequence[int], limits: DraftLimits) -> Growing:
        growth = TreeGrowth(tokens)
        if limits.budget < 2 or limits.depth < 1:
            return Draft(growth.tree(limits))
        widths: list[int] = []  # nodes of each draft pass
        offered: Candidates | None = None  # the draft's candidates below the root
        target_row = self.guide.target_row(len(tokens))
        levels_row = self.guide.levels_row(len(tokens))
        least = _LEAST_SCORE  # of guesses
        level, unexpanded = [ROOT], set[int]()  # `unexpanded`: nodes whose parents are expanded
        if self.sources:
            paying = _CONFIRMED * self.guide.least_chance(target_row, limits.pending)
            least = math.log(max(paying, self.guide.rate * _ASKING_MS / _GUESSED, _LEAST_CHANCE))
            self._guess(growth, [ROOT], limits, least)
            level = self._worth_expanding(growth, {ROOT}, limits, target_row, levels_row)
        for n_passes in range(1, limits.depth + 1):
            if not level:
                break
            widths.append(len(level))
            yield growth.drafted(level)
            new: list[int] = []
            for node, candidates in zip(level, self.source.children(growth, level), strict=True):
                if node == ROOT:
                    offered = candidates
                new += self._add_children(growth, node, candidates)
                unexpanded.update(growth.children[node])
            if self.sources:
                self._guess(growth, new, limits, least)
            unexpanded.difference_update(level)
            if n_passes == limits.depth:
                break
            unexpanded = set(growth.open(unexpanded, limits))
            level = self._worth_expanding(growth, unexpanded, limits, target_row, levels_row)
        chances = growth.chances(limits.leaves)
        n, _ = self.guide.best_size(chances, target_row, limits.budget, limits.pending, offered is not None)
        return Draft(growth.tree(replace(limits, budget=n)), tuple(widths), offered)

    def _guess(self, growth: TreeGrowth, nodes: Sequence[int], limits: DraftLimits, least: float) -> None:
        """Offer the sources' guesses below those of `nodes` that may be among the best. least: score of a guess."""
        assert self.sources
        floor = max(growth.worst_kept(limits.budget), least)
        worth = [node for node in nodes if growth.scores[node] > floor]
        add_guesses(growth, self.sources, worth, limits, float(np.exp(floor)))

    def _add_children(self, growth: TreeGrowth, node: int, candidates: Candidates) -> list[int]:
        """Offer the draft's candidates below `node`, and rescore the sources' guesses there; returns new nodes' ids."""
        tokens, probabilities = candidates.tokens.tolist(), candidates.shares
        shares = dict(zip(tokens, probabilities.tolist(), strict=True))
        own = self.guide.calibration.chances(growth.depths[node] + 1, probabilities)
        chances = dict(zip(tokens, own.tolist(), strict=True))
        if self.sources and (guesses := growth.guesses(self.sources, node)):
            chances = pooled([Expert(chances, unnamed_factor=_UNNAMED_FACTOR), Expert(dict(guesses), _TRUST)])
        offered = {growth.tokens[child]: child for child in growth.children[node]}
        new = []
        for token, chance in chances.items():
            score = growth.scores[node] + math.log(max(chance, 1e-9))
            share = shares.get(token, math.nan)
            if (child := offered.get(token)) is not None:
                growth.probabilities[child] = share
                growth.rescore(child, score)
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
        """The nodes that another draft pass should expand, best first; none if such a pass does not pay."""
        width = min(limits.width, len(levels_row) - 1)
        # One leaf path can only become better where it goes on, or before it is known to be the best.
        followed = unexpanded.intersection(growth.best_path()) if limits.leaves == 1 else unexpanded
        best = _next(growth, followed, limits.depth, width)
        width = len(best) if limits.leaves == 1 else width
        others = unexpanded.difference(best)
        best = expandable_of(growth, self.source, [*best, *growth.best(others, len(others))], width)
        if not best:
            return []
        chances = growth.chances(limits.leaves)
        asked_draft = ROOT not in unexpanded
        now, rate = self.guide.best_size(chances, target_row, limits.budget, limits.pending, asked_draft)
        node_cost = rate * marginal_ms(target_row, now + limits.pending)
        # When the budget is full, a new node replaces the worst node that would be kept without it.
        floor = max(node_cost, float(chances[limits.budget - 1]) if len(chances) >= limits.budget else 0.0)
        gains = []
        for node in best:
            reached = float(np.exp(growth.scores[node]))
            offered = sum(np.exp([growth.scores[child] for child in growth.children[node]]).tolist()) / reached
            gain = self.guide.calibration.expected_gain(growth.depths[node] + 1, reached, floor)
            gains.append((1.0 - _OFFERED_SHARE * offered) * gain)
        worth = np.cumsum(gains) - rate * levels_row[1 : len(best) + 1]
        last = int(worth.argmax())
        return best[: last + 1] if worth[last] > 0 else []


def _next(growth: TreeGrowth, unexpanded: set[int], depth: int, count: int) -> list[int]:
    """The `count` best nodes for the next draft pass, parents first.

    If sources guessed children of such a node, its best child may be expanded in the same pass. Further children may
    not, because the draft's cache can split a path only between passes.
    """
    waiting = [(-growth.scores[node], node) for node in unexpanded if growth.depths[node] < depth]
    heapq.heapify(waiting)
    best: list[int] = []
    while waiting and len(best) < count:
        _, node = heapq.heappop(waiting)
        best.append(node)
        if node == ROOT:
            break  # the first pass expands the root alone
        if below := growth.children[node]:
            score, child = min((-growth.scores[child], child) for child in below)
            if growth.depths[child] < depth:
                heapq.heappush(waiting, (score, child))
    return best


def _cost_aware(drafting: Drafting) -> CostAwareDrafter:
    assert drafting.guide, "adaptive plans have cost tables"
    return CostAwareDrafter(drafting.need_source(), drafting.guide, drafting.guesses)


def _label(plan: Plan) -> str:
    sources = ", with draft sources" if plan.method.sources else ""
    return f"adaptive tree of at most {plan.size}{sources}"


def _options(_plan: Plan) -> str:
    return "--speculate auto (the adaptive plan needs the profile's cost tables)"


MERGED = Method(
    name="merged",
    kind="planner",
    paper="this project; adaptive with all draft sources",
    pays="wherever adaptive does, and more where the answer copies text",
    drafter=_cost_aware,
    needs=(DRAFT, PROFILE),
    stops=True,
    width=MOST_WIDTH,  # how many pay follows from what draft passes take
    sources=ALL_SOURCES,
    without_draft=DRAFTLESS,
    label=_label,
    options=_options,
)
ADAPTIVE = replace(
    MERGED,
    name="adaptive",
    paper="this project; after SpecExec and OPT-Tree",
    pays="wherever any tree or chain does, because each tree is as large as pays on this machine",
    sources=(),
    without_draft=None,
)

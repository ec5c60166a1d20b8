"""Drafters that end trees and chains by the draft's own probabilities; see docs/methods.md for what is ours."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Distribution
from specrun.speculation.drafter import Draft, Drafter, DraftLimits, Growing
from specrun.speculation.growth import ModelCandidates, TreeGrowth, expandable_of
from specrun.speculation.planning.guide import Guide
from specrun.speculation.tree import ROOT


class OwnGrowth(TreeGrowth):
    """A growing tree with the draft's own probabilities, which lack the noise of the scores that rank the nodes."""

    def __init__(self, committed: Sequence[int]) -> None:
        super().__init__(committed)
        self.own = [1.0]  # of each node after its parent
        self.own_paths = [1.0]  # of the path to each node: the product of the above
        self.distributions: dict[int, NDArray[np.float64]] = {}  # of the token after each expanded node


Select = Callable[[OwnGrowth, list[int], DraftLimits], list[int]]
"""(growth, nodes of the newest level, limits) -> the nodes to expand next, best first; none ends the tree."""


@dataclass(frozen=True)
class LevelDrafter(Drafter):
    """Grows a tree level by level. select: chooses the nodes that a level's draft pass expands. count: the number of
    candidates that are offered below a node, from the draft's own probability of the first; None offers all.
    """

    source: ModelCandidates
    select: Select
    count: Callable[[float], int] | None = None

    def grow(self, tokens: Sequence[int], limits: DraftLimits) -> Growing:
        growth = OwnGrowth(tokens)
        level = [ROOT]
        for _ in range(min(limits.depth, limits.budget - 1)):
            yield growth.drafted(level)
            below = self._offer(growth, level)
            chosen = self.select(growth, below, limits) if below else []
            level = expandable_of(growth, self.source, chosen, limits.width) if chosen else []
            if not level:
                break
        return Draft(growth.tree(limits))

    def _offer(self, growth: OwnGrowth, nodes: Sequence[int]) -> list[int]:
        """Offer the candidates below each of `nodes`, from one draft pass. Returns the ids of the new nodes."""
        rows, first, sampler = self.source.rows(growth, nodes), len(growth.tokens), self.source.sampler
        for node, row, found in zip(nodes, rows, self.source.candidates(growth, nodes, rows), strict=True):
            if not len(found.tokens):
                continue
            # Greedily the draft samples, at temperature 1, from its candidates. A grammar does not change any of it.
            q = Distribution(found.tokens, found.shares)
            if sampler.noise is not None:
                q = sampler.distribution(row, sampler.recent(growth.committed) + growth.path(node))
            own = q.dense(len(row))[found.tokens]
            growth.distributions[node] = q.probabilities
            children = zip(found.tokens.tolist(), found.log_shares().tolist(), own.tolist(), strict=True)
            for token, log_share, p in islice(children, self.count(own[0]) if self.count else None):
                growth.add(token, node, growth.scores[node] + log_share, math.exp(log_share))
                growth.own.append(p)
                growth.own_paths.append(growth.own_paths[node] * p)
        return list(range(first, len(growth.tokens)))


_THRESHOLD = 0.2  # tokens; used without measured pass times


def opt_tree(guide: Guide | None = None) -> Select:
    """OPT-Tree (arXiv 2406.17276): expand the likeliest nodes until a level raised the expected accepted length by less
    than a threshold: a draft pass's time over a target pass's by the guide, else 0.2 tokens.
    """

    def select(growth: OwnGrowth, below: list[int], limits: DraftLimits) -> list[int]:
        threshold, ctx = _THRESHOLD, len(growth.committed)
        if guide:
            levels, width = guide.levels_row(ctx), len({growth.parents[node] for node in below})
            threshold = min(float(levels[min(width, len(levels) - 1)]) / guide.plain_ms(ctx), 1.0)
        # The chances of the best nodes add up to the expected length.
        before, expected = (
            sum(heapq.nlargest(limits.budget, paths)) for paths in (growth.own_paths[: below[0]], growth.own_paths)
        )
        if expected - before < threshold:
            return []
        # Only nodes among the best can have descendants among them.
        kept = set(growth.best(range(len(growth.scores)), limits.budget))
        return growth.best(kept & set(below), limits.width)

    return select


BEAM = 10  # nodes, as in EAGLE-2 (arXiv 2406.16858)
_LEAST_SHARE = 0.3  # below this sum of probabilities the target's token is probably outside the beam


def dynamic_depth(growth: OwnGrowth, below: list[int], limits: DraftLimits) -> list[int]:
    """DDD (arXiv 2409.00142): a beam of the likeliest paths, until their probabilities have a small sum."""
    beam = growth.best(below, limits.width)
    return beam if sum(growth.own_paths[node] for node in beam) >= _LEAST_SHARE else []


def cape_count(probability: float) -> int:
    """CaPE (arXiv 2402.02082): the drafted token and its siblings, more of them the less likely it is."""
    return next((count for bound, count in ((0.3, 7), (0.6, 5), (0.8, 3)) if probability <= bound + 1e-9), 1)


def _entropy_bound(distribution: NDArray[np.float64]) -> float:
    """AdaEDL's lower bound on the chance of acceptance, which falls with the entropy in nats."""
    positive = distribution[distribution > 0]
    return 1 - math.sqrt(-0.2 * float((positive * np.log(positive)).sum()))


Stop = Callable[[NDArray[np.float64], float, float], bool]
"""(float64[k], the draft's own distribution; its probability of a drafted token; the product of these so far) ->
whether a chain ends with this token, which is not its first."""
STOPS: dict[str, Stop] = {
    "specdec++": lambda _distribution, _probability, path: 1 - path > 0.7,  # the chance that any token is rejected
    "disco": lambda _distribution, probability, _path: probability < 0.4,
    "adaedl": lambda distribution, _probability, _path: _entropy_bound(distribution) < 0.3,
}


def chain(
    source: ModelCandidates, stop: Stop | None = None, count: Callable[[float], int] = lambda _: 1
) -> LevelDrafter:
    """A chain of the best candidates until `stop` says so. Further ones, by `count`, have no children."""

    def select(growth: OwnGrowth, below: list[int], _limits: DraftLimits) -> list[int]:
        node, parent = below[0], growth.parents[below[0]]
        # The token at which the chain stops costs no further draft pass, so it is kept.
        ends = stop and parent != ROOT and stop(growth.distributions[parent], growth.own[node], growth.own_paths[node])
        return [] if ends else [node]

    return LevelDrafter(source, select, count)

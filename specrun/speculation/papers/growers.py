"""Drafters that grow trees and chains by the draft's own probabilities. None needs training.

OPT-Tree (arXiv 2406.17276) expands the likeliest nodes of each level, keeps the best `budget` nodes offered, and ends
when a level raised the expected accepted length by less than a threshold. By the paper the threshold lies between 1 and
the ratio of a draft pass's time to a target pass's.

Dynamic depth decoding (DDD, arXiv 2409.00142) expands only the likeliest nodes of the newest level, as EAGLE-2 does
(arXiv 2406.16858), and stops once the probabilities of this beam have a small sum.

SpecDec++ (arXiv 2405.19715) ends a chain when the chance that any of its tokens is rejected exceeds a threshold, DISCO
(arXiv 2405.04304) when the newest token is likely to be rejected, and AdaEDL (arXiv 2410.18351) when a lower bound on
acceptance, computed from the draft's entropy, is low. In place of the trained predictors of SpecDec++ and DISCO stands
the draft's probability of its best candidate. CaPE (arXiv 2402.02082) adds more candidates beside each token of a chain
the lower that probability is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.drafter import Draft, DraftLimits
from specrun.speculation.growth import CandidateSource, TreeGrowth, expandable_of, offer_children
from specrun.speculation.planning.guide import Guide
from specrun.speculation.tree import ROOT

_THRESHOLD = 0.2  # tokens; used without measured pass times


@dataclass(frozen=True)
class OptTreeDrafter:
    """Grows the tree with the largest expected accepted length by the draft's own probabilities.

    guide: if given, the threshold is a draft pass's time over a target pass's.
    """

    source: CandidateSource
    guide: Guide | None = None

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> Draft:
        growth = TreeGrowth(tokens)
        level, expected = [ROOT], 0.0
        for _ in range(limits.depth if limits.budget > 1 else 0):
            below = offer_children(growth, self.source, level)
            # The chances of the best nodes add up to the expected length.
            before, expected = expected, float(np.exp(heapq.nlargest(limits.budget, growth.scores)).sum())
            if expected - before < self._threshold(len(tokens), len(level)):
                break
            # Only nodes among the best can have descendants among them.
            kept = set(growth.best(range(len(growth.scores)), limits.budget))
            best = growth.best(kept & set(below), limits.width)
            level = expandable_of(growth, self.source, best, limits.width)
            if not level:
                break
        return Draft(growth.tree(limits))

    def _threshold(self, ctx: int, width: int) -> float:
        if self.guide is None:
            return _THRESHOLD
        levels = self.guide.levels_row(ctx)
        return min(float(levels[min(width, len(levels) - 1)]) / self.guide.plain_ms(ctx), 1.0)


BEAM = 10  # nodes, as in EAGLE-2
_LEAST_SHARE = 0.3  # below this sum of probabilities the target's token is probably outside the beam


@dataclass(frozen=True)
class DynamicDepthDrafter:
    """Expands a beam of the draft's likeliest paths until their probabilities have a small sum."""

    source: CandidateSource

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> Draft:
        growth = TreeGrowth(tokens)
        beam = [ROOT]
        for _ in range(limits.depth if limits.budget > 1 else 0):
            beam = growth.best(offer_children(growth, self.source, beam), limits.width)
            if np.exp([growth.scores[n] for n in beam]).sum() < _LEAST_SHARE:
                break
            beam = expandable_of(growth, self.source, beam, limits.width)
            if not beam:
                break
        return Draft(growth.tree(limits))


Stop = Callable[[NDArray[np.float64], float], bool]
"""(shares, kept) -> whether the chain ends before the next token.

shares: float64[k], the draft's probabilities of the candidates for it, best first. kept: chance that the best of them
and all tokens before it are accepted.
"""

_REJECTED = 0.7  # SpecDec++: largest chance of a rejection
_LEAST_CONFIDENCE = 0.4  # DISCO: least probability of the best candidate
_ENTROPY_WEIGHT, _LEAST_BOUND = 0.2, 0.3  # AdaEDL: weight of the entropy in nats, and least bound on acceptance
_SIBLINGS = ((0.3, 7), (0.6, 5), (0.8, 3), (1.0, 1))  # CaPE: (highest probability of the best candidate, candidates)


def specdec_stops(_shares: NDArray[np.float64], kept: float) -> bool:
    """SpecDec++: whether the chance that any token is rejected exceeds its threshold."""
    return 1 - kept > _REJECTED


def disco_stops(shares: NDArray[np.float64], _kept: float) -> bool:
    """DISCO: whether the best candidate is likely to be rejected."""
    return float(shares[0]) < _LEAST_CONFIDENCE


def adaedl_stops(shares: NDArray[np.float64], _kept: float) -> bool:
    """AdaEDL: whether the lower bound on acceptance, 1 - sqrt(weight * entropy), is too low."""
    positive = shares[shares > 0]
    entropy = -float((positive * np.log(positive)).sum())
    return 1 - math.sqrt(_ENTROPY_WEIGHT * entropy) < _LEAST_BOUND


@dataclass(frozen=True)
class ConfidenceDrafter:
    """Drafts a chain of the draft's best candidates until `stop` says so, which the first token never causes."""

    source: CandidateSource
    stop: Stop

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> Draft:
        growth = TreeGrowth(tokens)
        node, kept = ROOT, 1.0
        while growth.depths[node] < min(limits.depth, limits.budget - 1):
            if not expandable_of(growth, self.source, [node], 1):
                break
            candidates = self.source.children(growth, [node])[0]
            shares = candidates.shares
            if not len(shares):
                break
            kept *= float(shares[0])
            is_last = node != ROOT and self.stop(shares, kept)
            # The token at which the chain stops costs no further draft pass, so it is kept.
            node = growth.add(int(candidates.tokens[0]), node, math.log(max(kept, 1e-300)), float(shares[0]))
            if is_last:
                break
        return Draft(growth.tree(limits))


@dataclass(frozen=True)
class CapeDrafter:
    """Drafts a chain with the next best candidates, which have no children, beside each of its tokens."""

    source: CandidateSource

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> Draft:
        growth = TreeGrowth(tokens)
        node = ROOT
        for _ in range(limits.depth if limits.budget > 1 else 0):
            if not expandable_of(growth, self.source, [node], 1):
                break
            below = offer_children(growth, self.source, [node], _n_candidates)
            if not below:
                break
            node = below[0]
        return Draft(growth.tree(limits))


def _n_candidates(shares: NDArray[np.float64]) -> int:
    return next(count for bound, count in _SIBLINGS if shares[0] <= bound + 1e-9)

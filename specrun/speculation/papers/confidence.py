"""Drafters that go by the draft's confidence: chains that stop early, and CaPE's side branches. None needs training.

SpecDec++ (arXiv 2405.19715) stops when the chance that any token of the chain is rejected exceeds a threshold, DISCO
(arXiv 2405.04304) when the newest token is likely to be rejected, and AdaEDL (arXiv 2410.18351) when a lower bound on
acceptance, computed from the draft's entropy, is low. In place of the trained predictors of SpecDec++ and DISCO stands
the draft's probability of its best candidate. CaPE (arXiv 2402.02082) adds more candidates beside each token of a chain
the lower that probability is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.drafter import Draft, DraftLimits
from specrun.speculation.growth import CandidateSource, TreeGrowth, expandable_of, offer_children
from specrun.speculation.tree import ROOT

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


class ConfidenceDrafter:
    """Drafts a chain of the draft's best candidates that ends with the token at which `stop` says so; the first token
    never ends it.
    """

    def __init__(self, source: CandidateSource, stop: Stop) -> None:
        self._source = source
        self._stop = stop

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> Draft:
        """A chain of at most `limits.depth` drafted tokens."""
        growth = TreeGrowth(tokens)
        node, kept = ROOT, 1.0
        while growth.depths[node] < min(limits.depth, limits.budget - 1):
            if not expandable_of(growth, self._source, [node], 1):
                break
            candidates = self._source.children(growth, [node])[0]
            shares = candidates.shares
            if not len(shares):
                break
            kept *= float(shares[0])
            is_last = node != ROOT and self._stop(shares, kept)
            # The token at which the chain stops costs no further draft pass, so it is kept.
            node = growth.add(int(candidates.tokens[0]), node, math.log(max(kept, 1e-300)), float(shares[0]))
            if is_last:
                break
        return Draft(growth.tree(limits))


class CapeDrafter:
    """Drafts a chain with the next best candidates beside each of its tokens."""

    def __init__(self, source: CandidateSource) -> None:
        self._source = source

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> Draft:
        """A tree within `limits` whose nodes beside the chain have no children."""
        growth = TreeGrowth(tokens)
        node = ROOT
        for _ in range(limits.depth if limits.budget > 1 else 0):
            if not expandable_of(growth, self._source, [node], 1):
                break
            below = offer_children(growth, self._source, [node], _n_candidates)
            if not below:
                break
            node = below[0]
        return Draft(growth.tree(limits))


def _n_candidates(shares: NDArray[np.float64]) -> int:
    return next(count for bound, count in _SIBLINGS if shares[0] <= bound + 1e-9)

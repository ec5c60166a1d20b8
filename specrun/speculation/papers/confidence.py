"""Chains that end where the draft is no longer sure, in forms that need no training, and CaPE's side branches.

SpecDec++ (arXiv 2405.19715) ends a chain when the chance that something in it is already rejected passes a threshold;
DISCO (2405.04304) when the newest token is likely to be rejected; AdaEDL (2410.18351) when a bound on acceptance that
follows from the draft's entropy is low. Their trained predictors are replaced by the draft's probability of its own
choice. CaPE (2402.02082) adds the next candidates beside each token, the more of them the less sure the draft is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.drafter import DraftLimits
from specrun.speculation.growth import CandidateSource, TreeGrowth, offer_children
from specrun.speculation.tree import ROOT, TokenTree

# (shares: the draft's probabilities of the candidates, best first; kept: chance that the best of them and all tokens
# before are accepted) -> whether the chain ends in front of them
Stop = Callable[[NDArray[np.float64], float], bool]

_REJECTED = 0.7  # SpecDec++'s threshold
_LEAST_CONFIDENCE = 0.4
_ENTROPY_WEIGHT, _LEAST_BOUND = 0.2, 0.3
_SIBLINGS = ((0.3, 7), (0.6, 5), (0.8, 3), (1.0, 1))  # CaPE: up to this confidence, so many candidates


def probably_rejected(_shares: NDArray[np.float64], kept: float) -> bool:
    """SpecDec++: whether something up to here is rejected with a chance above its threshold."""
    return 1 - kept > _REJECTED


def unsure(shares: NDArray[np.float64], _kept: float) -> bool:
    """DISCO: whether the best candidate is probably rejected."""
    return float(shares[0]) < _LEAST_CONFIDENCE


def disordered(shares: NDArray[np.float64], _kept: float) -> bool:
    """AdaEDL: whether its lower bound on acceptance, 1 - sqrt(weight * entropy), is too low."""
    held = shares[shares > 0]
    entropy = -float((held * np.log(held)).sum())
    return 1 - math.sqrt(_ENTROPY_WEIGHT * entropy) < _LEAST_BOUND


class ConfidenceDrafter:
    """A chain of the draft's best candidates that `stop` may end; the first token is always drafted."""

    def __init__(self, source: CandidateSource, stop: Stop) -> None:
        self._source = source
        self._stop = stop

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A chain of at most `limits.depth` drafted tokens."""
        growth = TreeGrowth(tokens)
        node, kept = ROOT, 1.0
        while growth.depths[node] < min(limits.depth, limits.budget - 1):
            if node != ROOT and self._source.expandable([growth.parents[node]]) == 0:
                break
            found = self._source.children(growth, [node])[0]
            shares = found.shares
            if not len(shares):
                break
            kept *= float(shares[0])
            if node != ROOT and self._stop(shares, kept):
                break
            node = growth.add(int(found.tokens[0]), node, math.log(max(kept, 1e-300)), float(shares[0]))
        return growth.tree(limits)


class CapeDrafter:
    """A chain with the next best candidates beside each of its tokens."""

    def __init__(self, source: CandidateSource) -> None:
        self._source = source

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A tree within `limits` with one path that is longer than one token beside the chain's."""
        growth = TreeGrowth(tokens)
        node = ROOT
        for _ in range(limits.depth if limits.budget > 1 else 0):
            if node != ROOT and self._source.expandable([growth.parents[node]]) == 0:
                break
            below = offer_children(growth, self._source, [node], _n_candidates)
            if not below:
                break
            node = below[0]
        return growth.tree(limits)


def _n_candidates(shares: NDArray[np.float64]) -> int:
    return next(count for bound, count in _SIBLINGS if shares[0] <= bound + 1e-9)

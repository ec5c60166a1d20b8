"""How little a row of logits must change for the sampler to take another token from it: near-ties.

All distances are differences of two logits, so a change of every logit by at most e bridges distances of up to 2 e.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import filters
from specrun.sampling.filters import Logits
from specrun.sampling.parameters import SamplingParameters
from specrun.sampling.sampler import Sampler


def gap(sampler: Sampler, logits: Logits, position: int, recent: Sequence[int], token: int, other: int) -> float:
    """How far `logits` are from giving `other` at `position` instead of `token`, which the sampler takes from them.

    When greedy this is the difference of their logits, else that of their scores logit / T + noise. Where a filter
    decides between them, it is how far the token is from passing it or from being cut, divided by T. Biases and
    penalties are applied first. For samplers without constraint. logits: float32[n_vocab]. recent: as for `sample`.
    """
    logits = sampler.adjusted(logits, recent)
    scores = sampler.scores(logits, position, np.array([token, other], np.int64))
    between = float(scores[0] - scores[1])
    temperature = sampler.parameters.temperature
    if temperature == 0:
        return abs(between)
    own, its = (_margin(logits, one, sampler.parameters) / temperature for one in (token, other))
    # The other token has to pass the filters, and either to have the higher score or to see the token cut.
    if its < 0:
        return max(min(max(between, 0.0), abs(own)), -its)
    return min(abs(between), abs(own))


def _margin(logits: Logits, token: int, parameters: SamplingParameters) -> float:
    """How far the token is from being cut by a filter; if one cuts it, minus how far it is from passing."""
    by_min_p = float(logits[token] - logits.max()) - math.log(parameters.min_p) if parameters.min_p > 0 else math.inf
    return min(_top_k_margin(logits, token, parameters.top_k), _top_p_margin(logits, token, parameters), by_min_p)


def _top_k_margin(logits: Logits, token: int, k: int) -> float:
    if not 0 < k < len(logits):
        return math.inf
    ranked = filters.top_k(logits, k + 1)
    rival = ranked[k] if token in ranked[:k] else ranked[k - 1]
    return float(logits[token] - logits[rival])


def _top_p_margin(logits: Logits, token: int, parameters: SamplingParameters) -> float:
    """By the log odds of the probability before the token, which a change of all logits by e moves by 2 e at most.

    The order may change too: tokens that are within the distance may come before the token, or no longer do.
    """
    p = parameters.top_p
    if p == 1:
        return math.inf
    survivors = filters.top_k(logits, parameters.top_k or len(logits))
    others = survivors[survivors != token]
    ahead = logits[others].astype(np.float64) - float(logits[token])  # falling
    weights = np.exp(ahead - max(ahead[0], 0.0)) if len(ahead) else ahead
    total = float(weights.sum()) + math.exp(-max(ahead[0], 0.0) if len(ahead) else 0.0)
    cumulative = np.concatenate([[0.0], np.cumsum(weights)]) / total  # [n]: probability of the first n others
    n_before = int((ahead > 0).sum())
    odds = _log_odds(cumulative) - _log_odds(np.array([p]))[0]
    if cumulative[n_before] < p:  # it passes; further tokens would have to come before it
        return float(np.maximum(np.append(0.0, -ahead[n_before:]), -odds[n_before:]).min())
    return -float(np.maximum(np.append(ahead[:n_before], 0.0), odds[: n_before + 1]).min())


def _log_odds(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shares) - np.log1p(-np.minimum(shares, 1.0)))

"""Which tokens may be sampled: top-k, top-p, min-p, as llama.cpp applies them (before the temperature).

A vocabulary of 152k tokens makes every full sort or exponential cost a millisecond, so candidates are found by
threshold first and only they are sorted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int64]

_GROUP = 64
_SHORT = _GROUP * _GROUP
_TOP_P_ATTEMPTS = (128, 2048)


def group_maxima(logits: Logits) -> Logits:
    """The largest logit of each group of about 64, in the one pass over a long row that its top and its maximum need.

    Token i is in group i % n, where n is the number of groups. A short row is its own maxima.
    """
    if len(logits) < _SHORT:
        return logits
    n_groups = len(logits) // _GROUP
    largest = logits[: _GROUP * n_groups].reshape(_GROUP, n_groups).max(axis=0)
    rest = logits[_GROUP * n_groups :]
    np.maximum(largest[: len(rest)], rest, out=largest[: len(rest)])
    return largest


def above(logits: Logits, threshold: float, largest: Logits) -> TokenIds:
    """Ids with a logit of at least `threshold`, ascending. largest: `group_maxima(logits)`."""
    threshold = np.float32(threshold)
    groups = np.flatnonzero(largest >= threshold)
    n_groups = len(largest)
    if n_groups == len(logits):
        return groups
    if 4 * len(groups) >= n_groups:
        return np.flatnonzero(logits >= threshold)
    members, columns = np.nonzero(logits[: _GROUP * n_groups].reshape(_GROUP, n_groups)[:, groups] >= threshold)
    rest = np.flatnonzero(logits[_GROUP * n_groups :] >= threshold)
    return np.concatenate([members * n_groups + groups[columns], rest + _GROUP * n_groups])


def by_likelihood(logits: Logits, tokens: TokenIds) -> TokenIds:
    """`tokens` (ascending) in order of falling logit; of equal ones the lower id first."""
    return tokens[np.argsort(-logits[tokens], kind="stable")]


def top_k(logits: Logits, k: int) -> TokenIds:
    """The k likeliest ids, likeliest first."""
    largest = group_maxima(logits)
    if k >= len(largest):
        return by_likelihood(logits, np.arange(len(logits)))[:k]
    # The k-th largest of the groups' maxima: k ids reach it, so every id of the top k does, and few others.
    threshold = np.partition(largest, len(largest) - k)[len(largest) - k]
    return by_likelihood(logits, above(logits, threshold, largest))[:k]


def top_p(logits: Logits, tokens: TokenIds, p: float) -> TokenIds:
    """The fewest leading `tokens` (likeliest first) whose share of their total probability reaches `p`."""
    weights = np.exp(logits[tokens].astype(np.float64) - float(logits[tokens[0]]))
    cumulative = np.cumsum(weights)
    return tokens[: int(np.searchsorted(cumulative, p * cumulative[-1])) + 1]


def top_p_of_all(logits: Logits, p: float) -> TokenIds:
    """Top-p over the whole vocabulary, likeliest first, sorting only as far down as needed."""
    highest = float(logits.max())
    total = float(np.exp(logits - np.float32(highest)).sum(dtype=np.float64))
    for k in (*_TOP_P_ATTEMPTS, len(logits)):
        tokens = top_k(logits, k)
        cumulative = np.cumsum(np.exp(logits[tokens].astype(np.float64) - highest))
        if cumulative[-1] >= p * total:
            break
    return tokens[: int(np.searchsorted(cumulative, p * total)) + 1]


def min_p(logits: Logits, tokens: TokenIds, p: float) -> TokenIds:
    """Those of `tokens`, in any order, at least `p` times as likely as the likeliest of them."""
    own = logits[tokens]
    return tokens[own >= own.max() + np.float32(np.log(p))]

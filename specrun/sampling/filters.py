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
_TOP_P_ATTEMPTS = (128, 2048)


def above(logits: Logits, threshold: float) -> TokenIds:
    """Ids with a logit of at least `threshold`, ascending."""
    return np.flatnonzero(logits >= np.float32(threshold))


def by_likelihood(logits: Logits, tokens: TokenIds) -> TokenIds:
    """`tokens` (ascending) in order of falling logit; of equal ones the lower id first."""
    return tokens[np.argsort(-logits[tokens], kind="stable")]


def top_k(logits: Logits, k: int) -> TokenIds:
    """The k likeliest ids, likeliest first."""
    n_groups = len(logits) // _GROUP
    if k >= n_groups:
        return by_likelihood(logits, np.arange(len(logits)))[:k]
    # The k-th largest of the groups' maxima: k ids reach it, so every id of the top k does, and few others.
    largest = logits[: n_groups * _GROUP].reshape(_GROUP, n_groups).max(axis=0)
    threshold = np.partition(largest, n_groups - k)[n_groups - k]
    return by_likelihood(logits, above(logits, threshold))[:k]


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
    """Those of `tokens` (likeliest first) at least `p` times as likely as the first."""
    return tokens[logits[tokens] >= logits[tokens[0]] + np.float32(np.log(p))]

"""Which tokens may be sampled: top-k, top-p, min-p, as llama.cpp applies them (before the temperature).

A vocabulary of 152k tokens makes every full sort or exponential cost a millisecond, so candidates are found by
threshold first and only they are sorted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int64]

_FIRST_MARGIN = 8.0  # nats below the maximum; most rows have enough candidates there


def above(logits: Logits, threshold: float) -> TokenIds:
    """Ids with a logit of at least `threshold`, ascending."""
    return np.flatnonzero(logits >= np.float32(threshold))


def by_likelihood(logits: Logits, tokens: TokenIds) -> TokenIds:
    """`tokens` (ascending) in order of falling logit; of equal ones the lower id first."""
    return tokens[np.argsort(-logits[tokens], kind="stable")]


def top_k(logits: Logits, k: int) -> TokenIds:
    """The k likeliest ids, likeliest first."""
    k = min(k, len(logits))
    if 4 * k >= len(logits):
        return by_likelihood(logits, np.arange(len(logits)))[:k]
    highest, margin = float(logits.max()), _FIRST_MARGIN
    while True:
        tokens = above(logits, highest - margin)
        if len(tokens) >= k:
            return by_likelihood(logits, tokens)[:k]
        margin *= 2
        if not np.isfinite(highest - margin):  # fewer than k finite logits
            return by_likelihood(logits, np.arange(len(logits)))[:k]


def top_p(logits: Logits, tokens: TokenIds, p: float) -> TokenIds:
    """The fewest leading `tokens` (likeliest first) whose share of their total probability reaches `p`."""
    weights = np.exp(logits[tokens].astype(np.float64) - float(logits[tokens[0]]))
    cumulative = np.cumsum(weights)
    return tokens[: int(np.searchsorted(cumulative, p * cumulative[-1])) + 1]


def top_p_of_all(logits: Logits, p: float) -> TokenIds:
    """Top-p over the whole vocabulary, likeliest first, sorting only as far down as needed."""
    highest, margin = float(logits.max()), _FIRST_MARGIN
    total = float(np.exp(logits - np.float32(highest)).sum(dtype=np.float64))
    while True:
        tokens = by_likelihood(logits, above(logits, highest - margin))
        cumulative = np.cumsum(np.exp(logits[tokens].astype(np.float64) - highest))
        count = int(np.searchsorted(cumulative, p * total)) + 1
        if count <= len(tokens):
            return tokens[:count]
        if len(tokens) == len(logits) or not np.isfinite(highest - margin):
            return tokens
        margin *= 2


def min_p(logits: Logits, tokens: TokenIds, p: float) -> TokenIds:
    """Those of `tokens` (likeliest first) at least `p` times as likely as the first."""
    return tokens[logits[tokens] >= logits[tokens[0]] + np.float32(np.log(p))]

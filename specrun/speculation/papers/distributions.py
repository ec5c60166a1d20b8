"""Distributions over the vocabulary, and the two operations every acceptance rule is made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# float64[n_vocab], none negative, summing to 1.
Probabilities = NDArray[np.float64]


def residual(p: Probabilities, q: NDArray[np.float64]) -> Probabilities:
    """norm(max(p - q, 0)): what is left of p where q has been offered and refused.

    q: float64[n_vocab], not negative; it need not sum to 1. Where q covers all of p nothing is left; rounding alone
    leads a rule there (p and q are equal), and p itself is returned.
    """
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p


def draw(p: Probabilities, rng: np.random.Generator) -> int:
    """A token from p. One of probability 0 is never drawn, whatever p sums to by rounding."""
    cumulative = np.cumsum(p)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))

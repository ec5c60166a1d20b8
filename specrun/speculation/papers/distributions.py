"""Distributions over the vocabulary, and the two operations that acceptance rules consist of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]
"""float64[n_vocab], not negative, with the sum 1."""


def residual(p: Probabilities, q: NDArray[np.float64]) -> Probabilities:
    """max(p - q, 0), normalised: the distribution to sample from after a draw from q was rejected.

    q: float64[n_vocab], not negative, with any sum. If p - q is nowhere positive, which only happens by rounding when
    p and q are equal, p is returned.
    """
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p


def draw(p: Probabilities, rng: np.random.Generator) -> int:
    """Draw a token from p. Rounding of the sum of p never leads to a token of probability 0."""
    cumulative = np.cumsum(p)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))

"""What the draft drew after a node, and from which distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Proposal:
    """The draft's distribution after a node, its filters applied, and the candidates drawn from it.

    tokens: int64[k], distinct: all that the draft gives a probability. probabilities: float64[k], theirs, summing to
    1. draws: the candidates in the order drawn; drawn with replacement, one can be there twice.
    """

    tokens: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    draws: tuple[int, ...]

    def dense(self, n_vocab: int) -> NDArray[np.float64]:
        """float64[n_vocab]: the distribution, 0 for every other token. n_vocab: above every token."""
        dense = np.zeros(n_vocab)
        dense[self.tokens] = self.probabilities
        return dense

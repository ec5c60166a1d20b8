"""k-SEQ: independent candidates, each accepted or rejected by the same test (SpecTr, arXiv 2310.15141). Lossless."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.papers.distributions import Probabilities, draw, residual

_PRECISION = 1e-6  # of gamma; a coarser one costs acceptance, not exactness


def k_seq(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """A `NodeRule`: accept the first draw with u < p / (gamma q), else draw from the residual.

    draws: k independent draws from q, duplicates included; k must not depend on what was drawn. The probability to
    accept one is 1 - (1 - beta)^k with beta = sum(min(q, p / gamma)).
    """
    if not draws:
        return draw(p, rng), False
    gamma, ratio = _gamma(p, q, len(draws))
    for token in draws:
        if rng.random() * gamma * q[token] < p[token]:
            return token, True
    return draw(residual(p, ratio * np.minimum(q, p / gamma)), rng), False


def _gamma(p: Probabilities, q: Probabilities, k: int) -> tuple[float, float]:
    """(gamma, ratio(gamma)) for the least gamma in [1, k] at which the residual is nowhere negative.

    That is where ratio(gamma) = (1 - (1 - beta)^k) / beta is at most gamma. As ratio(gamma) never falls with gamma,
    its value at a gamma on one side of the root lies between gamma and the root, which speeds up the bisection. The
    end of the interval where the condition holds is returned.
    """
    shared = np.flatnonzero((p > 0) & (q > 0))
    p, q = p[shared], q[shared]
    low, high = 1.0, float(k)
    while high - low > _PRECISION:
        middle = (low + high) / 2
        bound = _ratio(p, q, middle, k)
        low, high = (low, bound) if bound <= middle else (bound, high)
    return high, _ratio(p, q, high, k)


def _ratio(p: NDArray[np.float64], q: NDArray[np.float64], gamma: float, k: int) -> float:
    """(1 - (1 - beta)^k) / beta as a geometric sum, which is exact for small beta and defined for 0."""
    rejected = max(1.0 - float(np.minimum(q, p / gamma).sum()), 0.0)
    return sum(rejected**i for i in range(k))

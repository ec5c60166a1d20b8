"""k-SEQ: independent candidates, each accepted on its own (SpecTr, 2310.15141). Lossless."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.papers.distributions import Probabilities, draw, residual

_PRECISION = 1e-6


def k_seq(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """Accept the first draw with u < p / (gamma q), else commit a token of the residual. A node rule.

    draws: k independent draws from q, duplicates included; k must not depend on what was drawn. Accepts with
    probability 1 - (1 - beta)^k, beta = sum(min(q, p / gamma)).
    """
    if not draws:
        return draw(p, rng), False
    gamma, ratio = _gamma(p, q, len(draws))
    for token in draws:
        if rng.random() * gamma * q[token] < p[token]:
            return token, True
    return draw(residual(p, ratio * np.minimum(q, p / gamma)), rng), False


def _gamma(p: Probabilities, q: Probabilities, k: int) -> tuple[float, float]:
    """The least gamma in [1, k] for which the residual is nowhere negative, so the root of
    1 - (1 - beta)^k = gamma * beta; and (1 - (1 - beta)^k) / beta at it.

    As the geometric sum 1 + (1 - beta) + ... + (1 - beta)^(k - 1) the quotient is exact for the smallest beta, and
    defined for 0; the condition is that it is at most gamma. It never falls with gamma, so its value at any gamma is
    a closer bound of the root on the same side. Bisection returns the end at which the condition holds: its precision
    costs acceptance, not exactness.
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
    refused = max(1.0 - float(np.minimum(q, p / gamma).sum()), 0.0)
    return sum(refused**i for i in range(k))

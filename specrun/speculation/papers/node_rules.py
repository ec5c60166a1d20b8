"""Acceptance rules for one node, and the two operations on distributions that they consist of. All are lossless.

`multi_step`: independent candidates (SpecInfer, arXiv 2305.09781). With a single candidate it is speculative sampling
(Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).
`sequoia`: candidates without replacement, then uniformly from the rest (arXiv 2402.12374). Without the latter it is
recursive rejection (RSD, arXiv 2402.14160).
`k_seq`: independent candidates, each accepted or rejected by the same test (SpecTr, arXiv 2310.15141).

Multi-candidate speculative sampling (arXiv 2401.06706) with and without replacement is the first and the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]
"""float64[n_vocab], not negative, with the sum 1."""


def residual(p: Probabilities, q: NDArray[np.float64]) -> Probabilities:
    """max(p - q, 0), normalised: the distribution to sample from after a draw from q was rejected.

    q: float64[n_vocab], not negative, with any sum. If p - q is nowhere positive, by rounding where both are equal, it
    is p.
    """
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p


def draw(p: Probabilities, rng: np.random.Generator) -> int:
    """Draw a token from p. Rounding of the sum of p never leads to a token of probability 0."""
    cumulative = np.cumsum(p)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def multi_step(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """A `NodeRule`: try the draws in turn, each against the residual that the rejected draws before it leave.

    draws: independent draws from q, duplicates included; their number must not depend on what was drawn. The chance to
        accept a single draw is sum(min(p, q)).
    """
    return _try_in_turn(p, ((token, q) for token in draws), rng)


def sequoia(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """A `NodeRule`: try the draws in turn, each as a draw from q without the tokens before it.

    draws: distinct tokens in the order drawn: from q without replacement, and once all tokens of q are drawn,
    uniformly from the other tokens of the target's vocabulary.
    """

    def candidates() -> Iterator[tuple[int, Probabilities]]:
        rest, untried = q.copy(), np.ones_like(q)
        for token in draws:
            if not rest.any():
                rest = untried.copy()
            yield token, rest / rest.sum()
            rest[token] = untried[token] = 0.0

    return _try_in_turn(p, candidates(), rng)


def _try_in_turn(
    p: Probabilities, candidates: Iterable[tuple[int, Probabilities]], rng: np.random.Generator
) -> tuple[int, bool]:
    """Returns (token to commit, whether it is an accepted candidate); the token is distributed as p.

    candidates: each token with q, the distribution that it was drawn from given the candidates before it. It is
    accepted with probability min(1, p/q). If it is rejected, p becomes the residual of p and q; the token is drawn
    from the last residual if all candidates are rejected.
    """
    for token, q in candidates:
        # This is u < p/q without the division, which may overflow.
        if rng.random() * q[token] < p[token]:
            return token, True
        p = residual(p, q)
    return draw(p, rng), False


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

    That is where ratio(gamma) = (1 - (1 - beta)^k) / beta is at most gamma. As ratio(gamma) never falls with gamma, its
    value lies between gamma and the root, which speeds up the bisection. The end where the condition holds is returned.
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

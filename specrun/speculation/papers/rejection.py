"""Rejection sampling over several candidates, which most node rules share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from specrun.speculation.papers.distributions import Probabilities, draw, residual


def try_in_turn(
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

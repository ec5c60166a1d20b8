"""The step that the rules with rejection share: candidates are tried in turn, and each refusal shrinks the target."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from specrun.speculation.papers.distributions import Probabilities, draw, residual


def try_in_turn(
    p: Probabilities, candidates: Iterable[tuple[int, Probabilities]], rng: np.random.Generator
) -> tuple[int, bool]:
    """Commit a token distributed as p; a candidate wherever possible.

    candidates: each token with the distribution it was drawn from, given the ones before it. One is accepted with
    probability min(1, p/q); refused, p becomes the residual, from which the token comes if all are refused.
    Returns the token, and whether it is a candidate that was accepted.
    """
    for token, q in candidates:
        # u < p/q without the division, which overflows for the smallest q.
        if rng.random() * q[token] < p[token]:
            return token, True
        p = residual(p, q)
    return draw(p, rng), False

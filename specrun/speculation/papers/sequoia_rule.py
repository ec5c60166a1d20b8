"""Sequoia's rule: candidates without replacement, then uniformly from the rest (2402.12374). Lossless."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specrun.speculation.papers.distributions import Probabilities
from specrun.speculation.papers.rejection import try_in_turn


def sequoia(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """Recursive rejection that goes on when q has no token left to give. A node rule.

    draws: distinct tokens, drawn from q without replacement, in that order; once every token of q is drawn, uniformly
    from all others of p's n_vocab tokens, not only from those the draft knows.
    """
    return try_in_turn(p, _without_replacement(q, draws), rng)


def _without_replacement(q: Probabilities, draws: Sequence[int]) -> Iterator[tuple[int, Probabilities]]:
    rest, untried = q.copy(), np.ones_like(q)
    for token in draws:
        if not rest.any():
            rest = untried.copy()
        yield token, rest / rest.sum()
        rest[token] = untried[token] = 0.0

"""Sequoia's rule: candidates without replacement, then uniformly from the rest (arXiv 2402.12374). Lossless."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specrun.speculation.papers.distributions import Probabilities
from specrun.speculation.papers.rejection import try_in_turn


def sequoia(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """A `NodeRule`: recursive rejection that continues after q has no token left.

    draws: distinct tokens in the order drawn: from q without replacement, and once all tokens of q are drawn,
    uniformly from the other tokens of the target's vocabulary.
    """
    return try_in_turn(p, _without_replacement(q, draws), rng)


def _without_replacement(q: Probabilities, draws: Sequence[int]) -> Iterator[tuple[int, Probabilities]]:
    rest, untried = q.copy(), np.ones_like(q)
    for token in draws:
        if not rest.any():
            rest = untried.copy()
        yield token, rest / rest.sum()
        rest[token] = untried[token] = 0.0

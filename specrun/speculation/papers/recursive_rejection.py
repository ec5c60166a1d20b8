"""Recursive rejection sampling: candidates without replacement (RSD, 2402.14160). Lossless.

Multi-candidate speculative sampling without replacement (2401.06706) is the same rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specrun.speculation.papers.distributions import Probabilities
from specrun.speculation.papers.rejection import try_in_turn


def recursive_rejection(
    p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator
) -> tuple[int, bool]:
    """Try every draw against q without the tokens tried before it. A node rule.

    draws: drawn from q without replacement (as Gumbel top-k does), in that order. Any after the last token to which
    q gives a probability are not tried.
    """
    return try_in_turn(p, _without_replacement(q, draws), rng)


def _without_replacement(q: Probabilities, draws: Sequence[int]) -> Iterator[tuple[int, Probabilities]]:
    rest = q.copy()
    for token in draws:
        total = rest.sum()
        if total == 0:
            return
        yield token, rest / total
        rest[token] = 0.0

"""Recursive rejection sampling: candidates without replacement (RSD, arXiv 2402.14160). Lossless.

Multi-candidate speculative sampling without replacement (arXiv 2401.06706) is the same rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specrun.speculation.papers.distributions import Probabilities
from specrun.speculation.papers.rejection import try_in_turn


def recursive_rejection(
    p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator
) -> tuple[int, bool]:
    """A `NodeRule`: try the draws in turn, each as a draw from q without the tokens before it.

    draws: tokens in the order in which they were drawn from q without replacement. Draws after the last token to which
    q gives a probability are ignored.
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

"""Node rules by rejection sampling over several candidates. All are lossless.

`speculative_sampling`: one candidate (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).
`multi_step`: independent candidates (SpecInfer, arXiv 2305.09781).
`recursive_rejection`: candidates without replacement (RSD, arXiv 2402.14160).
`sequoia`: candidates without replacement, then uniformly from the rest (arXiv 2402.12374).

Multi-candidate speculative sampling (arXiv 2401.06706) with and without replacement is the second and the third.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from specrun.speculation.papers.distributions import Probabilities, draw, residual


def speculative_sampling(
    p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator
) -> tuple[int, bool]:
    """A `NodeRule`: accept the draw with probability min(1, p/q), else draw from the residual.

    draws: one token drawn from q, or none; further ones are ignored. The acceptance rate is sum(min(p, q)).
    """
    return _try_in_turn(p, ((token, q) for token in draws[:1]), rng)


def multi_step(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """A `NodeRule`: try the draws in turn, each against the residual that the rejected draws before it leave.

    draws: independent draws from q, duplicates included; their number must not depend on what was drawn.
    """
    return _try_in_turn(p, ((token, q) for token in draws), rng)


def recursive_rejection(
    p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator
) -> tuple[int, bool]:
    """A `NodeRule`: try the draws in turn, each as a draw from q without the tokens before it.

    draws: tokens in the order in which they were drawn from q without replacement. Draws after the last token to which
    q gives a probability are ignored.
    """

    def candidates() -> Iterator[tuple[int, Probabilities]]:
        rest = q.copy()
        for token in draws:
            total = rest.sum()
            if total == 0:
                return
            yield token, rest / total
            rest[token] = 0.0

    return _try_in_turn(p, candidates(), rng)


def sequoia(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """A `NodeRule`: recursive rejection that continues after q has no token left.

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

"""Block verification: a chain is accepted or rejected as a whole (arXiv 2403.10444). Lossless.

Token-by-token rules end at the first rejection. Here a likely token makes up for an unlikely one before it, so the
expected accepted length is never lower; the paper proves that no rule for a single chain reaches a higher one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.papers.node_rules import Probabilities, draw, residual


def block_verification(
    ps: Sequence[Probabilities], qs: Sequence[Probabilities], tokens: Sequence[int], rng: np.random.Generator
) -> tuple[int, int]:
    """Returns (number of accepted tokens, token to commit after them).

    tokens: the L tokens of a chain, tokens[i] drawn from qs[i]. ps: the target's L + 1 distributions, ps[i] that of
    the token at place i. L may depend on the drawn tokens, but not on tokens that were drawn and then left out.
    """
    n_accepted, reach_accepted = 0, 1.0
    reach = 1.0  # chance that all tokens up to here are accepted, given these tokens
    for i, token in enumerate(tokens, start=1):
        share = reach * float(ps[i - 1][token])
        drawn = float(qs[i - 1][token])
        reach = 1.0 if share >= drawn else share / drawn
        # There is no early end: the last token that passes counts, even after failed ones.
        if rng.random() < (reach if i == len(tokens) else _chance(reach, ps[i], qs[i])):
            n_accepted, reach_accepted = i, reach
    if n_accepted == len(tokens):
        return n_accepted, draw(ps[-1], rng)
    return n_accepted, draw(residual(reach_accepted * ps[n_accepted], qs[n_accepted]), rng)


def _chance(reach: float, p: Probabilities, q: Probabilities) -> float:
    """Chance to accept up to a token that is not the last. p, q: the distributions of the token after it."""
    if reach == 1.0:
        return 1.0  # this covers p == q, where the quotient is 0/0; a later token is accepted then
    rest = float(np.maximum(reach * p - q, 0.0).sum())
    return rest / (rest + 1.0 - reach)

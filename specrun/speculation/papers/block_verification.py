"""Block verification: a chain is accepted as a whole (2403.10444). Lossless.

Token by token, a chain ends at the first refusal. Here a likely token makes up for an unlikely one before it, so that
the expected accepted length is never lower; the paper proves that no rule for a single chain has a higher one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.papers.distributions import Probabilities, draw, residual


def block_verification(
    ps: Sequence[Probabilities], qs: Sequence[Probabilities], tokens: Sequence[int], rng: np.random.Generator
) -> tuple[int, int]:
    """How many of a chain's tokens are accepted, and the token that is committed after them.

    tokens: L tokens, tokens[i] drawn from qs[i]. ps: the target's L + 1 distributions, ps[i] before tokens[i] and
    ps[L] after them all. L may depend on the tokens before the end, not on those that were left out.
    """
    n_accepted, reach_accepted = 0, 1.0
    reach = 1.0  # chance, given the tokens up to here, that all of them are accepted
    for i, token in enumerate(tokens, start=1):
        share = reach * float(ps[i - 1][token])
        drawn = float(qs[i - 1][token])
        reach = 1.0 if share >= drawn else share / drawn
        # No early end: the last one that passes counts, whatever was refused before it.
        if rng.random() < (reach if i == len(tokens) else _chance(reach, ps[i], qs[i])):
            n_accepted, reach_accepted = i, reach
    if n_accepted == len(tokens):
        return n_accepted, draw(ps[-1], rng)
    return n_accepted, draw(residual(reach_accepted * ps[n_accepted], qs[n_accepted]), rng)


def _chance(reach: float, p: Probabilities, q: Probabilities) -> float:
    """Chance to accept up to a token that is not the last. p, q: the distributions after it."""
    if reach == 1.0:
        return 1.0  # also where p == q and the quotient is 0/0: a later token is then accepted anyway
    rest = float(np.maximum(reach * p - q, 0.0).sum())
    return rest / (rest + 1.0 - reach)

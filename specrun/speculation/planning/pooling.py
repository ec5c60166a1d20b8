"""What several say of the next token, as one distribution.

Each opinion alone is calibrated: of what a draft model, or a draft source, calls 50 % about half comes true. Together
they know more than any of them: a token that several name nearly always comes, and what one names and another does not,
seldom does. As far as their errors are independent of each other, chances multiply (a logarithmic opinion pool, or
product of experts). A token's weight is

    BASE * product over opinions of (chance / BASE if it is named, else passed_over * rest) ** trust

and that of all tokens that nobody names the product of rest ** trust, where rest is what an opinion leaves open. The
chances are the weights divided by their sum. `scripts/bench_sources.py` says what that is worth on a machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BASE = 0.25  # how often a token that is named at all comes, about
_LEAST_REST = 0.02  # nobody is ever sure


@dataclass(frozen=True)
class Opinion:
    """Chances of distinct tokens, of which at most 1 in sum counts.

    trust: 1 if its errors have nothing to do with those of the others, less if they have. passed_over: times `rest`,
    the chance that it leaves to a token which only others name.
    """

    chances: Mapping[int, float]
    trust: float = 1.0
    passed_over: float = 1.0

    @property
    def rest(self) -> float:
        """The chance of all that it does not name."""
        return max(1.0 - sum(self.chances.values()), _LEAST_REST)


def pooled(opinions: Sequence[Opinion]) -> dict[int, float]:
    """The chance of every token that any of them names. Opinions that name nothing do not count, and a single one
    stands as it is.
    """
    opinions = [opinion for opinion in opinions if opinion.chances]
    if len(opinions) < 2:
        return dict(opinions[0].chances) if opinions else {}
    named = {token: BASE for opinion in opinions for token in opinion.chances}
    others = 1.0
    for opinion in opinions:
        rest = opinion.rest
        passed_over = (opinion.passed_over * rest) ** opinion.trust
        for token in named:
            chance = opinion.chances.get(token)
            named[token] *= passed_over if chance is None else (chance / BASE) ** opinion.trust
        others *= rest**opinion.trust
    total = math.fsum(named.values()) + others
    return {token: weight / total for token, weight in named.items()}

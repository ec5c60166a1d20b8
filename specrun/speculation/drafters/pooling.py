"""What a draft model and draft sources say of the same position, as one distribution.

Each alone is calibrated: of what the draft, or a source, calls 50 % about half comes true. Together they know more
than either: where both name a token it nearly always comes, and what one names and the other does not, seldom does. As
if their errors were independent of each other, chances multiply (a product of experts; naive Bayes):

    both name it          drafted * guessed / BASE
    only the draft        drafted * (1 - sum of guessed)
    only a source         guessed * (1 - sum of drafted) * PASSED_OVER
    any other token       (1 - sum of drafted) * (1 - sum of guessed)

divided by the sum of all of them. `scripts/bench_sources.py` says what that is worth against the better of both.
"""

from __future__ import annotations

from collections.abc import Mapping

BASE = 0.25  # how often a token that both name by accident would be right
PASSED_OVER = 0.25  # what the draft does not list among many, it has looked at
_LEAST_REST = 0.02  # chance of what nobody names; nobody is ever sure


def pooled(drafted: Mapping[int, float], guessed: Mapping[int, float]) -> dict[int, float]:
    """The chance of every token that either names. drafted, guessed: chances of distinct tokens, at most 1 in sum or
    slightly more; without guesses, what was drafted is what is returned.
    """
    if not guessed:
        return dict(drafted)
    no_draft = max(1.0 - sum(drafted.values()), _LEAST_REST)
    no_guess = max(1.0 - sum(guessed.values()), _LEAST_REST)
    weights = {}
    for token, chance in drafted.items():
        weights[token] = chance * (guessed[token] / BASE if token in guessed else no_guess)
    for token, chance in guessed.items():
        if token not in drafted:
            weights[token] = chance * no_draft * PASSED_OVER
    total = sum(weights.values()) + no_draft * no_guess
    return {token: weight / total for token, weight in weights.items()}

"""A pool of n-grams that the target wrote or proposed before (Lookahead decoding, arXiv 2402.02057).

Lookahead fills the pool from Jacobi iterations. Here it is filled from the target's choices after the nodes of checked
trees, rejected branches included. The phrases of Ouroboros (arXiv 2402.13720) are the same structure, filled the same
way, so one pool serves both methods.

Beside the other sources it brings 0 to 6 % more tokens a second without a draft model (greedy, streamed), and with one
nothing that can be told from chance (docs/benchmarks/sources.md).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

LENGTH = 5  # tokens of an n-gram; the first one is its key
PER_KEY = 8  # n-grams with the same first token
MAX_KEYS = 8192  # first tokens

Gram = tuple[int, ...]


class NgramPool:
    """A source over n-grams of 2 to 5 tokens: the most recent PER_KEY for each of at most MAX_KEYS first tokens.

    Evidence: `4 * (m - 1)`, where the text ends with the first m tokens of the n-gram (1 to 4); plus 2 for the first
    guess; plus 1 if the target wrote the n-gram and did not only propose it on a branch.
    """

    prior = np.linspace(0.05, 0.5, 4 * (LENGTH - 1))

    def __init__(self) -> None:
        self._text: Gram = ()  # the last tokens of the text
        # First token, least recently added first -> rest of each n-gram, oldest first -> whether the target wrote it.
        self._pool: OrderedDict[int, dict[Gram, bool]] = OrderedDict()

    def reset(self) -> None:
        """A new text begins. The n-grams stay."""
        self._text = ()

    def extend(self, tokens: Sequence[int]) -> None:
        text = (*self._text, *tokens)
        for start in range(len(text) - LENGTH + 1):
            self._keep(text[start : start + LENGTH], written=True)
        self._text = text[-(LENGTH - 1) :]

    def learn(self, paths: Iterable[Sequence[int]]) -> None:
        """Add what the target proposed. Each path holds the tokens of a branch, then the target's choice after them."""
        for path in paths:
            for start in range(len(path) - 1):
                self._keep(tuple(path[start : start + LENGTH]), written=False)

    def guesses(self, path: Sequence[int], count: int) -> dict[int, int]:
        """Tokens that continue n-grams whose beginning ends the text: longest match first, then most recent first."""
        context = (*self._text, *path)[1 - LENGTH :]
        guesses: dict[int, int] = {}
        for start in range(len(context)):
            grams = self._pool.get(context[start], {})
            matched = context[start + 1 :]
            n = len(matched)
            for rest in reversed(grams):
                if len(rest) > n and rest[:n] == matched and rest[n] not in guesses:
                    guesses[rest[n]] = 4 * n + 2 * (not guesses) + grams[rest]
                    if len(guesses) == count:
                        return guesses
        return guesses

    def _keep(self, gram: Gram, written: bool) -> None:
        key, rest = gram[0], gram[1:]
        grams = self._pool.setdefault(key, {})
        self._pool.move_to_end(key)
        grams[rest] = grams.pop(rest, False) or written
        if len(grams) > PER_KEY:
            del grams[next(iter(grams))]
        if len(self._pool) > MAX_KEYS:
            self._pool.popitem(last=False)

"""A pool of n-grams that the target wrote or proposed before (Lookahead decoding, arXiv 2402.02057).

Lookahead fills it from Jacobi iterations; here the target's rows along a checked tree take their place, rejected
branches included. Ouroboros's phrases (2402.13720), pieces that were accepted or discarded once and come back where
their first token does, are the same structure filled in the same way, so there is one pool for both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from specrun.speculation.sources.source import Guess, last_tokens

LENGTH = 5  # tokens of an n-gram, the first one, its key, included
PER_KEY = 8
MAX_KEYS = 8192

Gram = tuple[int, ...]


class NgramPool:
    """A source over n-grams of 2 to 5 tokens by their first token, the most recent first, bounded in both.

    Evidence: `4 * (matched - 1)`, where `matched` is how many of the n-gram's tokens the text ends with (1 to 4); 2
    more for the first guess; 1 more if the target wrote the n-gram, not only proposed it on a branch.
    """

    name = "n-gram pool"
    n_evidence = 4 * (LENGTH - 1)

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._text: Gram = ()  # its last tokens
        # By first token, the least recently filled first: the rest of each n-gram, oldest first, and if it was written.
        self._pool: OrderedDict[int, dict[Gram, bool]] = OrderedDict()

    def __len__(self) -> int:
        """N-grams kept: at most 8 for each of `max_keys` first tokens."""
        return sum(map(len, self._pool.values()))

    def reset(self) -> None:
        """A new text begins. The pool stays: it tells how the target writes."""
        self._text = ()

    def extend(self, tokens: Sequence[int]) -> None:
        text = (*self._text, *tokens)
        for start in range(len(text) - LENGTH + 1):
            self._keep(text[start : start + LENGTH], written=True)
        self._text = text[-(LENGTH - 1) :]

    def learn(self, paths: Iterable[Sequence[int]]) -> None:
        """Take in what the target proposed: each path is a branch's tokens, root or any node first, and last the token
        that the target's row chose behind them.
        """
        for path in paths:
            for start in range(len(path) - 1):
                self._keep(tuple(path[start : start + LENGTH]), written=False)

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """What continues the n-grams that the text ends in, the longest match first, of equals the most recent."""
        context = last_tokens(self._text, path, LENGTH - 1)
        found: dict[int, Guess] = {}
        for start in range(len(context)):
            grams = self._pool.get(context[start])
            if grams is None:
                continue
            begun = context[start + 1 :]
            place = len(begun)
            for rest in reversed(grams):
                if len(rest) > place and rest[:place] == begun and rest[place] not in found:
                    found[rest[place]] = Guess(rest[place], 4 * place + 2 * (not found) + grams[rest])
                    if len(found) == count:
                        return list(found.values())
        return list(found.values())

    def _keep(self, gram: Gram, written: bool) -> None:
        key, rest = gram[0], gram[1:]
        grams = self._pool.setdefault(key, {})
        self._pool.move_to_end(key)
        grams[rest] = grams.pop(rest, False) or written
        if len(grams) > PER_KEY:
            del grams[next(iter(grams))]
        if len(self._pool) > self._max_keys:
            self._pool.popitem(last=False)

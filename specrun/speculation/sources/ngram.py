"""Prompt lookup: what followed the most recent occurrence of the last few tokens.

The n-gram matching of the methods known as prompt lookup decoding and, in llama.cpp, n-gram speculation.
"""

from __future__ import annotations

from collections.abc import Sequence

from specrun.speculation.sources.source import Guess, last_tokens

LONGEST = 3


class PromptLookup:
    """A source over the committed text: for n = 3, 2, 1, the token behind the last n-gram's most recent occurrence.

    A drafted path is looked up again at each of its tokens, so it may go on from one occurrence to another.
    Evidence: `2 * (n - 1)` for the n that found the token, and 1 more if no longer n-gram had been found.
    """

    name = "prompt lookup"
    n_evidence = 2 * LONGEST

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._text: tuple[int, ...] = ()  # its last tokens
        self._following: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        """N-grams known: at most 3 for each token of the text."""
        return len(self._following)

    def extend(self, tokens: Sequence[int]) -> None:
        recent = self._text
        for token in tokens:
            for start in range(len(recent)):
                self._following[recent[start:]] = token
            recent = (*recent, token)[-LONGEST:]
        self._text = recent

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """One token for each n, the longest first, less those found before."""
        context = last_tokens(self._text, path, LONGEST)
        found: dict[int, Guess] = {}
        for start in range(len(context)):
            token = self._following.get(context[start:])
            if token is not None and token not in found:
                n = len(context) - start
                found[token] = Guess(token, 2 * (n - 1) + (not found))
        return list(found.values())[:count]

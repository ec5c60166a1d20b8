"""Prompt lookup decoding, in llama.cpp n-gram speculation: guess what last followed the last few tokens."""

from __future__ import annotations

from collections.abc import Sequence

from specrun.speculation.sources.source import Guess, last_tokens

LONGEST = 3  # tokens of the longest n-gram


class PromptLookup:
    """A source over the committed text: for n = 3, 2, 1, the token after the last n tokens' most recent occurrence.

    Each token of a drafted path is looked up anew, so a path may go on at another occurrence.
    Evidence: `2 * (n - 1)` for a match of n tokens, plus 1 for the first guess.
    """

    n_evidence = 2 * LONGEST

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._text: tuple[int, ...] = ()  # the last tokens of the text
        self._following: dict[tuple[int, ...], int] = {}  # at most 3 n-grams for each token of the text

    def extend(self, tokens: Sequence[int]) -> None:
        recent = self._text
        for token in tokens:
            for start in range(len(recent)):
                self._following[recent[start:]] = token
            recent = (*recent, token)[-LONGEST:]
        self._text = recent

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """At most one token for each n, longest n first."""
        context = last_tokens(self._text, path, LONGEST)
        guesses: dict[int, Guess] = {}
        for start in range(len(context)):
            token = self._following.get(context[start:])
            if token is not None and token not in guesses:
                n = len(context) - start
                guesses[token] = Guess(token, 2 * (n - 1) + (not guesses))
        return list(guesses.values())[:count]

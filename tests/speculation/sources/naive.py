"""Text matching by a search at every position, to compare the sources with, and what a source guesses, in its order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.sources.source_set import Source


def guessed(source: Source, path: Sequence[int], count: int) -> list[tuple[int, int]]:
    """(token, evidence) of each guess, best first."""
    return list(source.guesses(path, count).items())


def random_text(rng: np.random.Generator, n: int, alphabet: int) -> list[int]:
    """Random tokens with pieces of earlier ones in between, so that there are long matches."""
    text: list[int] = []
    while len(text) < n:
        if len(text) > 10 and rng.random() < 0.4:
            start = int(rng.integers(len(text) - 5))
            text += text[start : start + int(rng.integers(3, 45))]
        else:
            text += rng.integers(alphabet, size=3).tolist()
    return text[:n]


def followers(store: Sequence[int], suffix: Sequence[int]) -> dict[int, list[int]]:
    """By token that follows `suffix` in `store`, the positions where it does."""
    found: dict[int, list[int]] = {}
    for end in range(len(suffix), len(store)):
        if list(store[end - len(suffix) : end]) == list(suffix):
            found.setdefault(store[end], []).append(end)
    return found


def matches(store: Sequence[int], context: Sequence[int], longest: int) -> list[tuple[int, dict[int, list[int]]]]:
    """For each suffix of `context` that something follows in `store`, longest first: its length, and what does."""
    lengths = range(min(longest, len(context)), 0, -1)
    found = [(length, followers(store, context[len(context) - length :])) for length in lengths]
    return [(length, positions) for length, positions in found if positions]

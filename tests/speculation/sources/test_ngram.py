"""Prompt lookup takes the most recent occurrence of the longest n-gram that occurs."""

from __future__ import annotations

import numpy as np

from specrun.speculation.sources.ngram import LONGEST, PromptLookup
from specrun.speculation.sources.source import Guess
from tests.speculation.sources.naive import matches, random_text


def naive_guesses(text: list[int], path: list[int]) -> list[Guess]:
    guesses: dict[int, Guess] = {}
    for length, positions in matches(text, text + path, LONGEST):
        token = max(positions, key=lambda token: positions[token][-1])
        guesses.setdefault(token, Guess(token, 2 * (length - 1) + (not guesses)))
    return list(guesses.values())


def lookup_of(text: list[int]) -> PromptLookup:
    lookup = PromptLookup()
    lookup.extend(text)
    return lookup


def test_it_finds_what_trying_every_place_finds() -> None:
    rng = np.random.default_rng(0)
    for alphabet in (1, 2, 4, 30):
        text = random_text(rng, 200, alphabet)
        lookup = PromptLookup()
        for place in range(0, 200, 5):
            lookup.extend(text[place : place + 5])
            for path in ([], [text[0]], text[3:5], text[10:15], rng.integers(alphabet + 1, size=2).tolist()):
                expected = naive_guesses(text[: place + 5], path)
                assert lookup.guesses(path, 9) == expected
                assert lookup.guesses(path, 1) == expected[:1]


def test_the_most_recent_occurrence_wins() -> None:
    assert lookup_of([1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 3]).guesses([], 3) == [Guess(6, 5)]
    assert lookup_of([1, 2, 3, 5, 7, 3, 6, 2, 3]).guesses([], 3) == [Guess(5, 3), Guess(6, 0)]


def test_a_new_text_begins_with_nothing_and_a_long_one_is_bounded() -> None:
    text = list(range(1000))
    lookup = lookup_of([*text, *text, *text])
    assert len(lookup._following) == LONGEST * 1000
    lookup.reset()
    assert len(lookup._following) == 0
    assert lookup.guesses(text[:3], 3) == []

"""The automaton finds what a search at every position finds."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.sources.suffix_automaton import (
    ALWAYS,
    FEW,
    FIRST,
    MAX_MATCH,
    MOST,
    ONCE,
    SHORTER,
    SuffixAutomaton,
    weakest,
)
from tests.speculation.sources.naive import guessed, matches, random_text


def naive_guesses(text: list[int], path: list[int]) -> list[tuple[int, int]]:
    guesses: dict[int, int] = {}
    found = matches(text, text + path, MAX_MATCH)
    for length, positions in found:
        scores = {t: len(ends) / (len(text) + 60 - (ends[-1] + 1)) for t, ends in positions.items()}
        total = sum(map(len, positions.values()))
        for token in sorted(scores, key=lambda t: (scores[t], len(positions[t]), t), reverse=True):
            is_first = token == max(scores, key=lambda t: (scores[t], len(positions[t]), t))
            share = MOST if 2 * len(positions[token]) > total else FIRST if is_first else FEW
            if len(positions) == 1:
                share = ALWAYS if total > 1 else ONCE
            if length != found[0][0]:
                share = SHORTER
            guesses.setdefault(token, weakest(length) + share)
    return list(guesses.items())


def automaton_of(text: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend(text)
    return automaton


@pytest.mark.slow
@pytest.mark.parametrize("alphabet", [1, 2, 3, 20])
def test_it_finds_what_trying_every_place_finds(alphabet: int) -> None:
    rng = np.random.default_rng(alphabet)
    n_longest = 0
    for _ in range(3):
        text = random_text(rng, 100, alphabet)
        automaton = SuffixAutomaton()
        place = 0
        while place < len(text):
            step = int(rng.integers(1, 9))
            automaton.extend(text[place : place + step])
            place += step
            so_far = text[:place]
            start = int(rng.integers(len(so_far)))
            paths = [[], so_far[start : start + 4], rng.integers(alphabet + 1, size=3).tolist(), so_far[-2:]]
            for path in paths:
                expected = naive_guesses(so_far, path)
                assert guessed(automaton, path, 99) == expected
                assert guessed(automaton, path[:1], 99) == naive_guesses(so_far, path[:1])
                n_longest += any(evidence >= weakest(16) for _, evidence in expected)
    assert n_longest > 5


def test_fewer_guesses_are_the_first_of_more() -> None:
    rng = np.random.default_rng(5)
    automaton = automaton_of(random_text(rng, 400, 4))
    for path in ([], [1], [2, 3], [0, 0, 1]):
        every = guessed(automaton, path, 99)
        assert len(every) == len({token for token, _ in every}) == 4
        for count in range(1, 5):
            assert guessed(automaton, path, count) == every[:count]


def test_the_end_of_the_text_is_no_match_for_itself() -> None:
    assert guessed(automaton_of([1, 2, 3]), [], 4) == []
    assert guessed(automaton_of([1, 2, 3]), [1], 4) == [(2, ONCE)]
    assert guessed(automaton_of([]), [], 4) == guessed(automaton_of([]), [7], 4) == []


def test_what_came_often_and_lately_comes_first() -> None:
    once_each = [9, 1, 9, 2, 9, 3, 9]
    assert [token for token, _ in guessed(automaton_of(once_each), [], 9)] == [3, 2, 1]
    often_then_once = [9, 1, 9, 1, 9, 1, 9, 2, 9]
    assert guessed(automaton_of(often_then_once), [], 9) == [(1, MOST), (2, FEW)]
    long_ago = [9, 1, 9, 1, *range(100, 300), 9, 2, 9]
    assert guessed(automaton_of(long_ago), [], 9)[0][0] == 2


def test_a_drafted_path_is_matched_like_committed_text() -> None:
    rng = np.random.default_rng(6)
    text = random_text(rng, 300, 5)
    automaton = automaton_of([*text, 77])  # nothing before 77 is part of a match after it
    for start in range(0, 280, 7):
        path = text[start : start + 6]
        drafted = [token for token, _ in guessed(automaton, path, 1)]
        assert drafted == [naive_guesses([*text, 77], path)[0][0]]
        assert guessed(automaton, path, 1)[0][1] >= weakest(6) + FEW


def test_a_new_text_begins_with_nothing() -> None:
    rng = np.random.default_rng(7)
    first, second = random_text(rng, 200, 6), random_text(rng, 200, 6)
    automaton = automaton_of(first)
    automaton.reset()
    assert guessed(automaton, [first[0]], 4) == []
    automaton.extend(second)
    assert guessed(automaton, [], 9) == guessed(automaton_of(second), [], 9)


@pytest.mark.parametrize("alphabet", [1, 2, 500])
def test_at_most_two_states_a_token(alphabet: int) -> None:
    automaton = automaton_of(random_text(np.random.default_rng(8), 3000, alphabet))
    assert 3000 < len(automaton._next) <= 6000

"""A suffix array finds what a search at every position finds."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.sources import suffix_array
from specrun.speculation.sources.source import ALWAYS, FEW, FIRST, MOST, ONCE, SHORTER, Guess, weakest
from specrun.speculation.sources.suffix_array import MAX_MATCH, SEPARATOR, SuffixArray, SuffixArraySource
from tests.speculation.sources.naive import matches, random_text


def naive_guesses(store: list[int], context: list[int]) -> list[Guess]:
    guesses: dict[int, Guess] = {}
    found = matches(store, context, MAX_MATCH)
    found = [(length, {t: ends for t, ends in positions.items() if t != SEPARATOR}) for length, positions in found]
    longest = next((length for length, positions in found if positions), 0)
    for length, positions in found:
        total = sum(map(len, positions.values()))
        ranked = sorted(positions, key=lambda t: (len(positions[t]), positions[t][-1]), reverse=True)
        for token in ranked:
            share = MOST if 2 * len(positions[token]) > total else FIRST if token == ranked[0] else FEW
            if len(positions) == 1:
                share = ALWAYS if total > 1 else ONCE
            if length != longest:
                share = SHORTER
            guesses.setdefault(token, Guess(token, weakest(length) + share))
    return list(guesses.values())


def joined(texts: list[list[int]]) -> list[int]:
    return [token for text in texts for token in [*text, SEPARATOR]]


def source_of(texts: list[list[int]]) -> SuffixArraySource:
    return SuffixArraySource(SuffixArray.build([np.array(text, np.int32) for text in texts]))


@pytest.mark.parametrize("alphabet", [1, 2, 5, 100])
def test_suffixes_are_in_order(alphabet: int) -> None:
    rng = np.random.default_rng(alphabet)
    for n in (0, 1, 2, 3, 4, 30, 200):
        text = random_text(rng, n, alphabet)
        array = SuffixArray.build([np.array(text, np.int32)])
        store = array.tokens.tolist()
        begun = [store[start : start + MAX_MATCH + 1] for start in array.order]
        assert begun == sorted(begun)
        assert sorted(array.order.tolist()) == list(range(n + 1))


@pytest.mark.parametrize("alphabet", [1, 2, 4, 30])
def test_it_finds_what_trying_every_place_finds(alphabet: int) -> None:
    rng = np.random.default_rng(10 + alphabet)
    n_longest = 0
    for _ in range(6):
        texts = [random_text(rng, int(rng.integers(0, 80)), alphabet) for _ in range(3)]
        source, store = source_of(texts), joined(texts)
        for _ in range(20):
            start = int(rng.integers(len(store)))
            piece = [token for token in store[start : start + 25] if token != SEPARATOR]
            text = [*rng.integers(alphabet + 1, size=int(rng.integers(4))).tolist(), *piece]
            n_drafted = int(rng.integers(len(text) + 1))
            committed, path = text[: len(text) - n_drafted], text[len(text) - n_drafted :]
            source.reset()
            for place in range(0, len(committed), 18):
                source.extend(committed[place : place + 18])
            expected = naive_guesses(store, text)
            assert source.guesses(path, 99) == expected
            assert source.guesses(path, 1) == expected[:1]
            n_longest += any(guess.evidence >= weakest(16) for guess in expected)
    assert n_longest > 3


def test_a_drafted_path_is_matched_like_committed_text() -> None:
    rng = np.random.default_rng(3)
    text = random_text(rng, 500, 12)
    drafted, committed = source_of([text]), source_of([text])
    for place in range(0, 400, 4):
        path = text[place + 50 : place + 54]
        drafted.extend(text[place : place + 2])
        committed.extend(text[place : place + 2])
        ahead = drafted.guesses(path, 9)
        assert ahead
        committed.extend(path)
        assert committed.guesses([], 9) == ahead
        drafted.extend(path)


def test_of_many_occurrences_evenly_spaced_ones_are_counted() -> None:
    rng = np.random.default_rng(4)
    text = []
    for token in rng.choice([1, 2, 3], size=3000, p=[0.6, 0.3, 0.1]).tolist():
        text += [0, token]
    source = source_of([text])
    assert source.guesses([0], 9) == [Guess(1, MOST), Guess(2, FEW), Guess(3, FEW)]
    assert source.guesses([0], 9) == source_of([text]).guesses([0], 9)


def test_a_new_text_matches_anew() -> None:
    source = source_of([[1, 2, 3, 4], [5, 2, 7]])
    source.extend([1, 2])
    assert source.guesses([], 9)[0].token == 3
    source.reset()
    assert source.guesses([], 9) == []
    assert source.guesses([5, 2], 9)[0].token == 7
    source.extend([2])
    assert source.guesses([], 9) == [Guess(7, FIRST), Guess(3, FEW)]


def test_too_many_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_array, "MAX_TOKENS", 20)
    with pytest.raises(ValueError, match="more than"):
        SuffixArray.build([np.zeros(20, np.int32)])

"""The n-gram pool gives back what was written or proposed, most recent first, within its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.sources.lookahead import LENGTH, PER_KEY, NgramPool
from tests.speculation.sources.naive import guessed, random_text


def evidence(matched: int, written: bool, first: bool = True) -> int:
    return 4 * (matched - 1) + 2 * first + written


def test_what_was_written_comes_back_behind_each_of_its_tokens() -> None:
    pool = NgramPool()
    pool.extend([1, 2, 3, 4])
    assert guessed(pool, [1], 3) == []  # an n-gram is written with its last token
    pool.extend([5, 6, 7, 8, 9])
    assert guessed(pool, [1], 3) == [(2, evidence(1, True))]
    assert guessed(pool, [1, 2, 3, 4], 3)[0] == (5, evidence(4, True))
    assert guessed(pool, [2, 3], 3) == [(4, evidence(2, True))]
    pool.reset()
    assert guessed(pool, [], 3) == []
    pool.extend([1])
    assert guessed(pool, [2], 3) == [(3, evidence(2, True))]
    assert guessed(pool, [9, 3], 3) == [(4, evidence(1, True))]


def test_what_was_proposed_on_a_branch_comes_back_and_counts_less() -> None:
    pool = NgramPool()
    pool.learn([[1, 2, 3], [1, 4]])
    pool.extend([1])
    assert guessed(pool, [], 3) == [(4, evidence(1, False)), (2, evidence(1, False, first=False))]
    assert guessed(pool, [2], 3) == [(3, evidence(2, False))]
    assert guessed(pool, [7, 2], 3) == [(3, evidence(1, False))]
    pool.extend([2, 3, 8, 9])
    pool.learn([[1, 2, 3, 8, 9]])
    assert guessed(pool, [1], 1) == [(2, evidence(1, True))]


def test_the_longest_match_comes_first_and_tokens_are_distinct() -> None:
    pool = NgramPool()
    pool.learn([[1, 2, 3, 4, 5], [2, 9], [2, 3]])
    pool.extend([1, 2])
    assert guessed(pool, [], 9) == [(3, evidence(2, False)), (9, evidence(1, False, first=False))]
    assert guessed(pool, [], 1) == [(3, evidence(2, False))]


def test_a_branch_of_any_length_leaves_an_n_gram_at_each_of_its_tokens() -> None:
    pool = NgramPool()
    pool.learn([list(range(20))])
    for token in range(19):
        assert guessed(pool, [99, token], 1) == [(token + 1, evidence(1, False))]
    assert sum(map(len, pool._pool.values())) == 19


def test_it_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specrun.speculation.sources.lookahead.MAX_KEYS", 10)
    pool = NgramPool()
    for token in range(100, 200):
        pool.learn([[1, token]])
    assert sum(map(len, pool._pool.values())) == PER_KEY
    pool.extend([1])
    assert [token for token, _ in guessed(pool, [], 99)] == list(range(199, 199 - PER_KEY, -1))
    pool.extend(random_text(np.random.default_rng(0), 2000, 500))
    assert PER_KEY < sum(map(len, pool._pool.values())) <= 10 * PER_KEY
    pool.extend(range(1000, 1000 + 10 + LENGTH - 1))
    assert guessed(pool, [1], 9) == []
    assert sum(map(len, pool._pool.values())) == 10


def test_the_same_history_gives_the_same_guesses() -> None:
    text = random_text(np.random.default_rng(1), 600, 12)
    pools = [NgramPool(), NgramPool()]
    for place in range(0, 600, 3):
        for pool in pools:
            pool.extend(text[place : place + 3])
            pool.learn([[*text[place : place + 2], 5], [place % 12, 3]])
        assert guessed(pools[0], [], 9) == guessed(pools[1], [], 9)
    assert guessed(pools[0], [], 9)

"""A set of sources: its pooled guesses, what it learns from a pass, and how it begins a new text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from specrun.sampling import SharedNoise
from specrun.speculation.accept import Accepted
from specrun.speculation.sources.lookahead import NgramPool
from specrun.speculation.sources.recycling import TokenRecycling
from specrun.speculation.sources.source import Guess
from specrun.speculation.sources.source_set import SourceSet
from specrun.speculation.tree import ROOT, TokenTree

N_VOCAB = 40


class Fixed:
    """Guesses the same tokens everywhere, and notes what it was told."""

    prior = np.linspace(0.05, 0.5, 2)

    def __init__(self, name: str, *guesses: tuple[int, int]) -> None:
        self.name = name
        self._guesses = [Guess(token, evidence) for token, evidence in guesses]
        self.told: list[int] = []
        self.n_resets = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self.told += tokens

    def reset(self) -> None:
        self.told = []
        self.n_resets += 1

    def guesses(self, _path: Sequence[int], count: int) -> list[Guess]:
        return self._guesses[:count]


def passed(sources: SourceSet, committed: list[int]) -> None:
    """A pass over the root alone commits these."""
    tree = TokenTree.chain([0, *committed[:-1]])
    sources.learn(tree, np.zeros((len(tree), N_VOCAB), np.float32), Accepted(list(range(len(tree))), committed))


def test_a_token_that_two_guess_is_there_once_and_likelier_than_either_says() -> None:
    weak, strong = Fixed("weak", (7, 0), (8, 0)), Fixed("strong", (7, 1))
    sources = SourceSet({"weak": weak, "strong": strong})
    sources.follow([1, 2], ["weak", "strong"])
    found = sources.children([], 4)
    assert [token for token, _ in found] == [7, 8]
    assert found[0][1] > found[1][1]
    assert sum(chance for _, chance in found) <= 1


def test_only_the_sources_that_are_named_are_asked_and_all_follow_the_text() -> None:
    one, other = Fixed("one", (3, 0)), Fixed("other", (4, 0))
    sources = SourceSet({"one": one, "other": other})
    sources.follow([1, 2], ["one"])
    assert [token for token, _ in sources.children([], 4)] == [3]
    sources.follow([1, 2, 5], ["other", "absent"])
    assert [token for token, _ in sources.children([], 4)] == [4]
    assert one.told == other.told == [1, 2, 5]
    sources.follow([9], ["one", "other"])
    assert (one.told, other.told) == ([9], [9]), "another text"
    assert one.n_resets == 1


def test_a_source_that_is_never_right_loses_its_chance_and_one_that_is_gains() -> None:
    sources = SourceSet({"wrong": Fixed("wrong", (7, 1)), "right": Fixed("right", (8, 1))})
    text = [1]
    for _ in range(60):
        sources.follow(text, ["wrong", "right"])
        sources.children([], 4)
        passed(sources, [8])
        text.append(8)
    sources.follow(text, ["wrong", "right"])
    chances = dict(sources.children([], 4))
    assert chances[8] > 0.9
    assert chances.get(7, 0.0) < 0.05


def test_chances_are_counted_only_on_the_targets_own_path() -> None:
    sources = SourceSet({"one": Fixed("one", (7, 0))})
    sources.follow([1], ["one"])
    before = sources.children([], 4)[0][1]
    for _ in range(20):
        sources.follow([1], ["one"])
        sources.children([3, 3], 4)  # a path that was not accepted
        passed(sources, [5])
    assert sources.children([], 4)[0][1] == pytest.approx(before, rel=0.1)


def test_what_a_grammar_forbids_is_not_guessed() -> None:
    sources = SourceSet({"one": Fixed("one", (7, 1), (8, 0))})
    asked: list[tuple[list[int], list[int]]] = []

    def permitted(text: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        asked.append((list(text), list(tokens)))
        return [token == 8 for token in tokens]

    sources.follow([1, 2], ["one"], permitted)
    assert [token for token, _ in sources.children([5], 4)] == [8]
    assert asked == [([1, 2, 5], [7, 8])]


def test_recycling_and_the_pool_learn_from_the_rows_of_a_pass() -> None:
    recycling, pool = TokenRecycling(), NgramPool()
    sources = SourceSet({"token-recycling": recycling, "lookahead": pool})
    sources.follow([1, 2], ["token-recycling", "lookahead"])
    assert sources.children([], 4) == []
    tree = TokenTree.build([2, 5, 6], [-1, ROOT, ROOT], [0.0, -1.0, -2.0])
    rows = np.zeros((3, N_VOCAB), np.float32)
    rows[0, [9, 8]], rows[1, [11, 10]], rows[2, [13, 12]] = [3, 2], [3, 2], [3, 2]
    sources.learn(tree, rows, Accepted([ROOT, 1], [5, 11]))
    assert [guess.token for guess in recycling.guesses([6], 2)] == [13, 12], "a rejected branch, too"
    assert [guess.token for guess in recycling.guesses([5], 2)] == [11, 10]
    assert 13 in [guess.token for guess in pool.guesses([2, 6], 4)]


def test_a_guess_with_much_noise_is_likelier_at_its_position() -> None:
    noise = SharedNoise(3, N_VOCAB)
    sources = SourceSet({"one": Fixed("one", (7, 1), (8, 1))})
    sources.follow([1, 2], ["one"])
    regardless = dict(sources.children([], 2))
    assert regardless[7] == regardless[8]
    sources.follow([1, 2], ["one"], noise=noise)
    for path in ([], [5], [5, 6], [5, 6, 7]):
        of_7, of_8 = noise.gumbel(2 + len(path), np.array([7, 8]))
        chances = dict(sources.children(path, 2))
        assert (chances[7] > chances[8]) == (of_7 > of_8)

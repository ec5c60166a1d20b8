"""A set of sources: its guesses, pooled so that they say more than each of them, what it learns, and a new text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from specrun.sampling import SharedNoise
from specrun.speculation.accept import Accepted
from specrun.speculation.sources.lookahead import NgramPool
from specrun.speculation.sources.recycling import TokenRecycling
from specrun.speculation.sources.source_set import Expert, SourceSet, given_noise, pooled
from specrun.speculation.tree import ROOT, TokenTree
from tests.speculation.sources.naive import guessed

N_VOCAB = 40
DRAFTED = {1: 0.5, 2: 0.2, 3: 0.05}


class Fixed:
    """Guesses the same tokens everywhere, and notes what it was told."""

    prior = np.linspace(0.05, 0.5, 2)

    def __init__(self, name: str, *guesses: tuple[int, int]) -> None:
        self.name = name
        self._guesses = guesses
        self.told: list[int] = []
        self.n_resets = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self.told += tokens

    def reset(self) -> None:
        self.told = []
        self.n_resets += 1

    def guesses(self, _path: Sequence[int], count: int) -> dict[int, int]:
        return dict(self._guesses[:count])


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
    assert [token for token, _ in guessed(recycling, [6], 2)] == [13, 12], "a rejected branch, too"
    assert [token for token, _ in guessed(recycling, [5], 2)] == [11, 10]
    assert 13 in [token for token, _ in guessed(pool, [2, 6], 4)]


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


def together(drafted: dict[int, float], guessed: dict[int, float]) -> dict[int, float]:
    return pooled([Expert(drafted, unnamed_factor=0.25), Expert(guessed)])


def test_one_opinion_stands_as_it_is() -> None:
    assert together(DRAFTED, {}) == together({}, DRAFTED) == pooled([Expert(DRAFTED, trust=0.5)]) == DRAFTED
    assert pooled([]) == together({}, {}) == {}


def test_a_token_that_both_name_is_likelier_than_either_says() -> None:
    found = together(DRAFTED, {1: 0.6})
    assert found[1] > 0.6
    assert found[2] < 0.2
    assert found[3] < 0.05


def test_a_token_that_only_one_names_is_unlikelier_where_the_other_is_sure() -> None:
    found = together(DRAFTED, {2: 0.9})
    assert found[2] > found[1]


def test_a_token_that_the_draft_considered_and_did_not_name_is_unlikely() -> None:
    found = together(DRAFTED, {9: 0.6})
    assert found[9] < 0.6 / 2
    assert found[1] < DRAFTED[1]


def test_less_trust_makes_agreement_weigh_less() -> None:
    chances = [pooled([Expert({1: 0.5}, trust), Expert({1: 0.5}, trust)])[1] for trust in (0.3, 0.5, 1.0)]
    assert chances == sorted(chances)
    assert chances[0] < chances[-1]


@pytest.mark.parametrize("guessed", [{}, {1: 0.98}, {9: 0.98}, {1: 0.3, 9: 0.5}, {7: 0.01}])
@pytest.mark.parametrize("drafted", [{}, {1: 1.0}, DRAFTED, {1: 0.6, 2: 0.5}, {1: 1e-9}])
def test_chances_are_a_distribution(drafted: dict[int, float], guessed: dict[int, float]) -> None:
    found = together(drafted, guessed)
    assert set(found) == {*drafted, *guessed}
    assert all(0 <= chance <= 1 for chance in found.values())
    if guessed and drafted:
        assert sum(found.values()) < 1


def test_a_token_is_likelier_if_either_finds_it_likelier() -> None:
    rising = [together({1: a, 2: 0.1}, {1: b, 5: 0.1})[1] for a in (0.1, 0.4, 0.8) for b in (0.1, 0.4, 0.8)]
    rows = [rising[i : i + 3] for i in range(0, 9, 3)]
    for line in (*rows, *zip(*rows, strict=True)):
        assert all(low < high for low, high in itertools.pairwise(line))


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.5, 0.8, 0.97])
def test_over_all_noise_the_mean_is_the_chance(chance: float) -> None:
    noise = SharedNoise(1, 10)
    given = np.array([given_noise({3: chance}, noise, position)[3] for position in range(4000)])
    assert given.mean() == pytest.approx(chance, abs=4 * float(given.std()) / 4000**0.5 + 0.002)
    assert given.std() > 0.005


def test_a_chance_rises_with_the_noise() -> None:
    noise = SharedNoise(1, 10)
    known = [float(noise.gumbel(position, np.array([3]))[0]) for position in range(50)]
    given = [given_noise({3: 0.4}, noise, position)[3] for position in range(50)]
    assert np.argsort(known).tolist() == np.argsort(given).tolist()


def test_siblings_with_known_noise_stay_below_certainty() -> None:
    noise = SharedNoise(1, 10)
    for position in range(50):
        given = given_noise({3: 0.9, 4: 0.05, 5: 0.04}, noise, position)
        assert 0 < sum(given.values()) <= 0.98 + 1e-9
    assert given_noise({}, noise, 0) == {}

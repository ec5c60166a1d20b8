"""Pooled opinions say more than each of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specrun.sampling import SharedNoise
from specrun.speculation.growth import TreeGrowth
from specrun.speculation.sources.pooling import Expert, given_noise, pooled

DRAFTED = {1: 0.5, 2: 0.2, 3: 0.05}


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


def test_what_is_below_a_node_changes_with_it() -> None:
    growth = TreeGrowth([1])
    child = growth.add(2, 0, -1.0, 0.5)
    other = growth.add(3, 0, -2.0, 0.2)
    grandchild = growth.add(4, child, -1.5, 0.6)
    growth.rescore(child, -0.25)
    assert [growth.scores[node] for node in (child, other, grandchild)] == [-0.25, -2.0, -0.75]


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

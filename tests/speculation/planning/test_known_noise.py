"""Chances of guesses, given the noise of their tokens."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.sampling import SharedNoise
from specrun.speculation.planning.known_noise import given_noise


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.5, 0.8, 0.97])
def test_over_all_noise_the_mean_is_the_chance(chance: float) -> None:
    noise = SharedNoise(1, 10)
    given = np.array([given_noise({3: chance}, noise, position)[3] for position in range(4000)])
    assert given.mean() == pytest.approx(chance, abs=4 * float(given.std()) / 4000**0.5 + 0.002)
    assert given.std() > 0.005


def test_it_rises_with_the_noise() -> None:
    noise = SharedNoise(1, 10)
    known = [float(noise.gumbel(position, np.array([3]))[0]) for position in range(50)]
    given = [given_noise({3: 0.4}, noise, position)[3] for position in range(50)]
    assert np.argsort(known).tolist() == np.argsort(given).tolist()


def test_siblings_stay_below_certainty() -> None:
    noise = SharedNoise(1, 10)
    for position in range(50):
        given = given_noise({3: 0.9, 4: 0.05, 5: 0.04}, noise, position)
        assert 0 < sum(given.values()) <= 0.98 + 1e-9
    assert given_noise({}, noise, 0) == {}

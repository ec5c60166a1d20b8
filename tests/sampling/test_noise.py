"""The shared noise is Gumbel noise, independent between tokens, positions and seeds."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.sampling.noise import LARGE_NOISE, SharedNoise
from specrun.verifying.findings import chi_square_p_value

N_VOCAB = 20_000
ALL = np.arange(N_VOCAB)


def uniform(noise: np.ndarray) -> np.ndarray:
    """The Gumbel distribution function: uniform if the noise is Gumbel."""
    return np.exp(-np.exp(-noise))


@pytest.mark.parametrize("key", [(0, 0), (1, 0), (0, 1), (2**63 - 1, 4095)])
def test_it_is_gumbel_over_tokens(key: tuple[int, int]) -> None:
    seed, position = key
    counts, _ = np.histogram(uniform(SharedNoise(seed, N_VOCAB).gumbel(position, ALL)), bins=100, range=(0, 1))
    assert chi_square_p_value(counts, np.full(100, N_VOCAB / 100)) > 1e-4


def test_it_is_gumbel_over_positions_and_over_seeds() -> None:
    token = np.array([123])
    over_positions = [SharedNoise(7, 200).gumbel(p, token)[0] for p in range(5000)]
    over_seeds = [SharedNoise(s, 200).gumbel(7, token)[0] for s in range(5000)]
    for noise in (over_positions, over_seeds):
        counts, _ = np.histogram(uniform(np.array(noise)), bins=50, range=(0, 1))
        assert chi_square_p_value(counts, np.full(50, 100.0)) > 1e-4


def test_neighbouring_positions_seeds_and_tokens_are_uncorrelated() -> None:
    rows = {(s, p): uniform(SharedNoise(s, N_VOCAB).gumbel(p, ALL)) for s in (0, 1) for p in (0, 1)}
    base = rows[0, 0]
    others = [rows[0, 1], rows[1, 0], rows[1, 1], np.roll(base, 1)]
    for other in others:
        # The correlation of 20,000 independent pairs has a standard deviation of 0.007.
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.035


def test_some_tokens_get_the_noise_that_all_would() -> None:
    noise = SharedNoise(3, N_VOCAB)
    some = np.array([5, 19_999, 0])
    np.testing.assert_array_equal(noise.gumbel(9, some), noise.gumbel(9, ALL)[some])


def test_large_noise_is_of_the_tokens_above_the_threshold() -> None:
    noise = SharedNoise(3, N_VOCAB)
    everything = noise.gumbel(9, ALL)
    tokens, values = noise.large_noise(9)
    assert tokens.tolist() == np.flatnonzero(everything >= LARGE_NOISE).tolist()
    np.testing.assert_array_equal(values, everything[tokens])

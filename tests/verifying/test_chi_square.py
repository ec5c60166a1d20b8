"""The chi-square test accepts what follows a distribution and refuses what does not."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.verifying.findings import chi_square_p_value

SHARES = np.array([0.5, 0.3, 0.15, 0.05])


def test_samples_of_the_distribution_give_any_p_value_and_others_a_tiny_one() -> None:
    rng = np.random.default_rng(0)
    own = [chi_square_p_value(rng.multinomial(500, SHARES), 500 * SHARES) for _ in range(400)]
    assert min(own) > 1e-4
    assert np.mean(np.array(own) < 0.1) == pytest.approx(0.1, abs=0.05)
    other = rng.multinomial(500, [0.35, 0.45, 0.15, 0.05])
    assert chi_square_p_value(other, 500 * SHARES) < 1e-4


def test_a_value_of_the_table() -> None:
    # The 95th percentile of chi-square with 3 degrees of freedom is 7.815.
    expected = np.full(4, 100.0)
    shift = np.sqrt(7.815 * 100 / 4)
    assert chi_square_p_value(expected + shift * np.array([1, -1, 1, -1]), expected) == pytest.approx(0.05, abs=0.002)


def test_rare_cells_are_pooled_and_the_impossible_has_probability_zero() -> None:
    assert chi_square_p_value([95, 3, 2], [95, 2.5, 2.5]) == chi_square_p_value([95, 5], [95, 5])
    assert chi_square_p_value([100, 0], [100, 0]) == 1.0
    assert chi_square_p_value([99, 1], [100, 0]) == 0.0

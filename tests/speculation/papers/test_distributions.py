"""Residuals are distributions whatever p and q are; draws never leave the support."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.papers.rules import draw, residual
from specrun.verifying.findings import chi_square_p_value
from tests.speculation.papers.cases import PAIRS, FixedUniform


@pytest.mark.parametrize("pair", PAIRS)
def test_a_residual_is_a_distribution_within_ps_support(pair: str) -> None:
    p, q = PAIRS[pair]
    rest = residual(p, q)
    assert rest.sum() == pytest.approx(1.0)
    assert (rest >= 0).all()
    assert not rest[p == 0].any()


def test_a_residual_is_what_q_does_not_cover() -> None:
    np.testing.assert_allclose(residual(np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.6, 0.1])), [0.75, 0, 0.25])
    np.testing.assert_allclose(residual(np.array([0.5, 0.5]), np.array([0.1, 0.2])), [4 / 7, 3 / 7])


def test_where_nothing_is_left_the_residual_is_p() -> None:
    p = np.array([0.25, 0.75, 0.0])
    np.testing.assert_array_equal(residual(p, p), p)
    np.testing.assert_array_equal(residual(p, np.nextafter(p, 1)), p)


def test_the_smallest_remainder_is_normalized() -> None:
    np.testing.assert_array_equal(residual(np.array([5e-324, 1.0]), np.array([0.0, 1.0])), [1.0, 0.0])


@pytest.mark.parametrize("pair", PAIRS)
def test_draws_are_distributed_as_p(pair: str) -> None:
    p = PAIRS[pair][0]
    rng = np.random.default_rng(0)
    counts = np.bincount([draw(p, rng) for _ in range(1000)], minlength=len(p))
    assert not counts[p == 0].any()
    assert chi_square_p_value(counts, 1000 * p) > 1e-4


@pytest.mark.parametrize("uniform", [0.0, 0.5, float(np.nextafter(1, 0))])
@pytest.mark.parametrize("scale", [1 - 1e-12, 1.0, 1 + 1e-12])
def test_the_ends_of_the_unit_interval_are_in_the_support(uniform: float, scale: float) -> None:
    p = scale * np.array([0.0, 0.0, 0.3, 0.0, 0.7 / 3, 0.7 / 3, 0.7 / 3, 0.0, 0.0])
    assert p[draw(p, FixedUniform(uniform))] > 0

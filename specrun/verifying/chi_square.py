"""Pearson's chi-square test, without scipy: whether counts of sampled tokens follow a distribution."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

_LEAST_EXPECTED = 5  # counts that a cell must expect; the usual bound for the test's approximation


def chi_square_p_value(observed: ArrayLike, expected: ArrayLike) -> float:
    """Probability of counts at least as far from `expected` as these, by the Wilson-Hilferty approximation.

    Cells that expect fewer than five are pooled. Counts where nothing at all was expected have probability 0.
    observed, expected: float64[n_cells], with equal sums.
    """
    observed, expected = np.asarray(observed, np.float64), np.asarray(expected, np.float64)
    small = expected < _LEAST_EXPECTED
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    if expected[-1] == 0:
        if observed[-1] > 0:
            return 0.0
        observed, expected = observed[:-1], expected[:-1]
    freedom = len(expected) - 1
    if freedom == 0:
        return 1.0
    statistic = float(((observed - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))

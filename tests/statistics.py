"""Pearson's chi-square test, without scipy."""

from __future__ import annotations

import math

import numpy as np


def chi_square_p_value(observed: np.ndarray, expected: np.ndarray) -> float:
    """Probability of counts at least as far from `expected` as these, by the Wilson-Hilferty approximation.

    Cells that expect fewer than five are pooled.
    """
    observed, expected = np.asarray(observed, np.float64), np.asarray(expected, np.float64)
    small = expected < 5
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    if expected[-1] == 0:
        assert observed[-1] == 0, "something impossible was observed"
        observed, expected = observed[:-1], expected[:-1]
    freedom = len(expected) - 1
    if freedom == 0:
        return 1.0
    statistic = float(((observed - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))

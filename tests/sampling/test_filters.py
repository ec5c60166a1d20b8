"""The filters by threshold equal the textbook ones by sorting."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.sampling import filters


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    flat = np.zeros(5000, np.float32)
    peaked = rng.standard_normal(5000).astype(np.float32)
    peaked[17] = 40
    ties = np.repeat(rng.standard_normal(100), 50).astype(np.float32)
    masked = rng.standard_normal(5000).astype(np.float32)
    masked[rng.random(5000) < 0.999] = -np.inf
    return [
        (3 * rng.standard_normal(5000)).astype(np.float32),
        (3 * rng.standard_normal(70)).astype(np.float32),
        (3 * rng.standard_normal(5000 + 37)).astype(np.float32),
        np.append(rng.standard_normal(64 * 80), [5, 9, 9]).astype(np.float32),
        flat,
        peaked,
        ties,
        masked,
    ]


def sorted_ids(row: np.ndarray) -> np.ndarray:
    return np.lexsort((np.arange(len(row)), -row))


IDS = ["normal", "small", "uneven", "top at the end", "flat", "peaked", "ties", "masked"]


@pytest.mark.parametrize("row", rows(), ids=IDS)
@pytest.mark.parametrize("k", [1, 2, 40, 1000, 5000, 100_000])
def test_top_k_is_the_head_of_the_sorted_row(row: np.ndarray, k: int) -> None:
    assert filters.top_k(row, k).tolist() == sorted_ids(row)[:k].tolist()


@pytest.mark.parametrize("row", rows(), ids=IDS)
@pytest.mark.parametrize("p", [0.01, 0.5, 0.95, 0.9999])
def test_top_p_is_the_shortest_head_with_enough_probability(row: np.ndarray, p: float) -> None:
    order = sorted_ids(row)
    weights = np.exp(row[order].astype(np.float64) - row.max())
    share = np.cumsum(weights) / weights.sum()
    expected = order[: int(np.searchsorted(share, p)) + 1]
    found = filters.top_p_of_all(row, p)
    # The total is summed in another order here, so the last token may differ by rounding at the very border.
    assert abs(len(found) - len(expected)) <= 1
    assert found.tolist()[: len(expected) - 1] == expected.tolist()[: len(found)][: len(expected) - 1]
    cut = filters.cut(row, order, p, 0.0).tolist()
    assert abs(len(cut) - len(expected)) <= 1
    assert cut == order[: len(cut)].tolist()


@pytest.mark.parametrize("row", rows(), ids=IDS)
@pytest.mark.parametrize("p", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_after_top_p_min_p_takes_a_prefix_too(row: np.ndarray, p: float, share: float) -> None:
    order = sorted_ids(row)
    both = filters.min_p(row, filters.cut(row, order, p, 0.0), share)
    assert filters.cut(row, order, p, share).tolist() == both.tolist()


@pytest.mark.parametrize("row", rows(), ids=IDS)
@pytest.mark.parametrize("p", [0.01, 0.3, 1.0])
def test_min_p_compares_with_the_likeliest(row: np.ndarray, p: float) -> None:
    order = sorted_ids(row)
    kept = filters.min_p(row, order, p)
    assert set(kept.tolist()) == set(np.flatnonzero(row >= row.max() + np.float32(np.log(p))).tolist())

"""Dividing layers among GPUs."""

from __future__ import annotations

import numpy as np

from specrun.hardware.target_layout import counts_of_split, divide, fill, holds


def test_fill_takes_the_first_room_first() -> None:
    assert fill([1, 1, 1], [2, 5]) == [2, 1]
    assert fill([3, 1], [2, 5]) == [0, 2]
    assert fill([1, 1, 1], [1, 1]) is None
    assert fill([], [0, 0]) == [0, 0]


def test_divided_layers_fit_and_fill_all_gpus_alike() -> None:
    assert divide([1] * 30, [40, 20]) == [20, 10]
    rng = np.random.default_rng(0)
    for _ in range(200):
        units = rng.integers(1, 100, int(rng.integers(1, 40))).tolist()
        rooms = rng.integers(0, 2000, int(rng.integers(1, 5))).tolist()
        counts = divide(units, rooms)
        assert (counts is None) == (fill(units, rooms) is None)
        if counts:
            assert sum(counts) == len(units)
            assert holds(units, counts, rooms)


def test_remote_gpus_get_what_the_others_have_no_room_for() -> None:
    assert divide([1] * 30, [90, 20, 20], {0}) == [0, 15, 15]
    assert divide([1] * 30, [90, 10, 5], {0}) == [15, 10, 5]
    assert divide([1] * 30, [20, 10, 10], {0, 1}) == [14, 7, 9]
    assert divide([1] * 30, [20, 10], {0, 1}) == divide([1] * 30, [20, 10]) == [20, 10]
    assert divide([1] * 30, [10, 10], {0}) is None


def test_a_split_by_counts_gives_these_counts() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        counts = rng.integers(0, 70, int(rng.integers(1, 9))).tolist()
        if sum(counts):
            assert counts_of_split(counts, len(counts), sum(counts)) == counts


def test_shares() -> None:
    assert counts_of_split((3, 1), 2, 33) == [25, 8]
    assert counts_of_split((1,), 3, 10) == [10, 0, 0]
    assert counts_of_split((0, 1, 5), 2, 10) == [0, 10]
    assert counts_of_split((1, 1), 2, 0) == [0, 0]

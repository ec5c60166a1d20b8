"""Without tables, the time of a draft pass and of each of its nodes is found from the sums over whole trees."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.planning.draft_times import DraftTimes

PLAIN_MS = 50.0


def learned(level: float, node: float, n_trees: int) -> DraftTimes:
    rng = np.random.default_rng(0)
    times = DraftTimes()
    for _ in range(n_trees):
        widths = [1, *rng.integers(1, 17, rng.integers(0, 8)).tolist()]
        times.record(widths, PLAIN_MS, level * len(widths) + node * sum(widths))
    return times


@pytest.mark.parametrize(("level", "node"), [(2.0, 0.1), (10.0, 4.0), (0.4, 0.1)])
def test_both_parts_are_found(level: float, node: float) -> None:
    assert learned(level, node, 20).parts(PLAIN_MS) == pytest.approx((level, node), rel=0.15)


def test_one_tree_puts_a_wrong_guess_right() -> None:
    assert learned(30.0, 0.0, 1).row(PLAIN_MS)[1] > 15.0


def test_what_was_learned_begins_the_next_run() -> None:
    first = learned(2.0, 0.5, 20)
    second = DraftTimes(first.table(PLAIN_MS))
    assert second.row(PLAIN_MS) == pytest.approx(first.row(PLAIN_MS))

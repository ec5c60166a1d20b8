"""Without tables, the time of a draft pass and of each of its nodes is found from the sums over whole trees."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.planning.costs import CostTable, PassTime
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


def test_times_that_were_measured_keep_their_shape_with_our_own_work_on_top() -> None:
    timed = CostTable([PassTime(n, 64, ms) for n, ms in ((1, 2.0), (8, 6.0), (64, 8.3))])
    times = DraftTimes(timed)
    assert times.table(PLAIN_MS).times == timed.times
    for widths in ([1, 4, 8], [1, 16, 16, 16], [1] * 8) * 20:
        times.record(widths, PLAIN_MS, 3.9 * len(widths) + 0.1 * sum(widths))
    now = times.table(PLAIN_MS)
    for n in (1, 4, 8):
        assert times.row(PLAIN_MS)[n] == pytest.approx(3.9 + 0.1 * n, rel=0.1)
        longer = times.row(PLAIN_MS)[n] / DraftTimes(timed).row(PLAIN_MS)[n]
        assert now.ms(n, 64) == pytest.approx(longer * timed.ms(n, 64), rel=0.05)
    assert DraftTimes(now).row(PLAIN_MS) == pytest.approx(times.row(PLAIN_MS))


def test_what_was_learned_begins_the_next_run() -> None:
    first = learned(2.0, 0.5, 20)
    second = DraftTimes(first.table(PLAIN_MS))
    assert second.row(PLAIN_MS) == pytest.approx(first.row(PLAIN_MS))

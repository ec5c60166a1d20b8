"""What further tokens are expected to cost in a mixture."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.planning.expert_growth import ExpertGrowth


def test_one_token_reads_its_experts_and_many_read_all() -> None:
    growth = ExpertGrowth(128, 8, 1.0)
    assert growth.experts(0) == 0
    assert growth.experts(1) == pytest.approx(8)
    assert growth.experts(10_000) == pytest.approx(128)
    assert list(growth.row(64)[[2, 4, 8, 64]]) == pytest.approx([1.94, 3.64, 6.45, 15.74], abs=0.01)


def test_it_is_the_mean_of_independent_choices() -> None:
    rng = np.random.default_rng(0)
    growth = ExpertGrowth(16, 3, 1.0)
    drawn = [len({e for _ in range(5) for e in rng.choice(16, 3, replace=False)}) for _ in range(4000)]
    assert growth.experts(5) == pytest.approx(np.mean(drawn), rel=0.02)


def test_what_every_token_uses_is_read_once() -> None:
    shared = ExpertGrowth(128, 8, 0.25).row(16)
    alone = ExpertGrowth(128, 8, 1.0).row(16)
    assert shared[1] == alone[1] == pytest.approx(1.0)
    assert shared[16] - 1 == pytest.approx(0.25 * (alone[16] - 1))
    assert np.all(np.diff(shared) > 0)
    assert np.all(np.diff(shared, 2) < 0), "each further token adds less"

"""Rates from blocks of text: their errors cover the truth, and plans are compared where texts are equally hard."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specrun.tuning.rates import BLOCK, BlockTimes, Estimate, block_seconds


def test_a_pass_gives_each_block_its_share_of_the_time() -> None:
    # 6, 2 and 5 tokens: the second block has a third of the first pass and the second one whole.
    assert block_seconds([6, 2, 5], [3.0, 2.0, 5.0]) == pytest.approx((2.0, 3.0, 4.0))
    assert block_seconds([3], [1.0]) == (), "no whole block"
    untimed = block_seconds([5, 3, 4], [9.0, 3.0, 2.0], n_untimed=1)
    assert all(math.isnan(one) for one in untimed[:2]), "both begin in the first pass"
    assert untimed[2] == pytest.approx(2.0)
    assert BlockTimes((untimed,)).tokens_per_second == pytest.approx(BLOCK / 2.0)


def test_estimates_weigh_by_their_precision() -> None:
    unknown = Estimate(5.0, math.inf)
    assert Estimate(1.0, 0.1).combined(unknown) == unknown.combined(Estimate(1.0, 0.1)) == Estimate(1.0, 0.1)
    both = Estimate(1.0, 0.1).combined(Estimate(4.0, 0.2))
    assert both.value == pytest.approx(1.6)
    assert both.error == pytest.approx(0.1 * 0.2 / math.hypot(0.1, 0.2))
    assert Estimate(1.0, 0.0).combined(Estimate(1.0, 0.0)) == Estimate(1.0, 0.0)
    assert Estimate(1.0, 0.3).widened(0.4) == Estimate(1.0, 0.5)


def texts(rng: np.random.Generator, n_texts: int, n_blocks: int) -> np.ndarray:
    """Seconds of blocks with mean 1: texts differ, and neighbours are alike."""
    of_texts = rng.lognormal(-0.02, 0.2, (n_texts, 1))
    noise = rng.lognormal(-0.045, 0.3, (n_texts, n_blocks + 3))
    alike = np.stack([noise[:, i : n_blocks + i] for i in range(4)]).mean(axis=0)
    return of_texts * alike


@pytest.mark.parametrize(("n_texts", "n_blocks"), [(8, 16), (5, 8), (8, 1)])
def test_two_errors_on_either_side_cover_the_true_rate(n_texts: int, n_blocks: int) -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        log_rate = BlockTimes(tuple(map(tuple, texts(rng, n_texts, n_blocks).tolist()))).log_rate
        covered += abs(log_rate.value - math.log(BLOCK)) < 2 * log_rate.error
    assert covered > 0.85 * 400, "a normal range of two errors covers 95 %, with the error known"


def test_what_makes_a_text_hard_for_both_plans_cancels_out() -> None:
    rng = np.random.default_rng(1)
    covered, errors = 0, []
    for _ in range(200):
        hardness = texts(rng, 8, 16)
        slow, fast = (hardness * factor * rng.lognormal(0, 0.05, hardness.shape) for factor in (1.0, 0.9))
        plans = [BlockTimes(tuple(map(tuple, seconds.tolist()))) for seconds in (fast, slow)]
        ratio = plans[0].log_ratio(plans[1])
        errors.append(ratio.error / plans[0].log_rate.error)
        covered += abs(ratio.value + math.log(0.9)) < 2 * ratio.error
    assert covered > 0.85 * 200
    assert np.mean(errors) < 0.25


def test_plans_are_compared_on_the_blocks_that_both_have() -> None:
    nan = math.nan
    one = BlockTimes(((nan, 1.0, 1.0, 1.0), (1.0, 1.0)))
    other = BlockTimes(((9.0, nan, 2.0), (2.0, 2.0), (9.0, 9.0)))
    assert one.log_ratio(other).value == pytest.approx(math.log(2))
    assert other.log_ratio(one).value == pytest.approx(-math.log(2))
    assert BlockTimes().log_ratio(one) == BlockTimes().log_rate == Estimate(0.0, math.inf)
    assert BlockTimes(((1.0,),)).log_rate.error == math.inf, "one block tells nothing of its scatter"

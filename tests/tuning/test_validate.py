"""Which plan is chosen by what plans did when they were run, and when they are run no more."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from specrun.speculation.accept import Accepted
from specrun.speculation.drafter import Draft
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE, MERGED
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.guide import PassRecord
from specrun.speculation.tree import TokenTree
from specrun.tuning import validate
from specrun.tuning.choose import TABLES_ERROR
from specrun.tuning.rates import BLOCK, BlockTimes, Estimate
from specrun.tuning.replay import Prediction
from specrun.tuning.validate import Validated, chosen, plain_rate, still_open, tuned_plan

CHAIN_OF_4 = CHAIN.plan(depth=4)
TREE = SPECEXEC.plan(16, 8)
ADAPTIVE_TREE = ADAPTIVE.plan(16, 8, 8)
WITH_SOURCES = replace(ADAPTIVE_TREE, method=MERGED, budget=32, depth=31)
AHEAD = replace(TREE, overlap=True)
NOTHING = BlockTimes()


def times(rate: float, scatter: float = 0.0, n_texts: int = 4, n_blocks: int = 24) -> BlockTimes:
    """Blocks of texts at this mean rate, whose seconds scatter by a share; the same seed for every plan."""
    rng = np.random.default_rng(int(1e3 * rate))
    factors = 1 + scatter * rng.standard_normal((n_texts, n_blocks))
    seconds = BLOCK / rate * factors / factors.mean()
    return BlockTimes(tuple(map(tuple, seconds.tolist())))


def ran(plan: Plan, measured: BlockTimes, predicted: BlockTimes = NOTHING) -> Validated:
    rate = predicted.tokens_per_second or measured.tokens_per_second
    return Validated(Prediction(plan, rate, 3.0, (2, 8), times=predicted), 0.0, measured, tokens=600, passes=200)


def by_measurement(*rates: tuple[Plan, float]) -> list[Validated]:
    """Plans whose rates were measured with errors of about 1 %, and not predicted."""
    return [ran(plan, times(rate, 0.1)) for plan, rate in rates]


@pytest.mark.parametrize(
    ("rates", "wanted"),
    [
        ([(OFF.plan(), 4.0), (CHAIN_OF_4, 9.0), (TREE, 11.0)], TREE),
        ([(OFF.plan(), 12.0), (CHAIN_OF_4, 9.0), (TREE, 11.0)], OFF.plan()),
        ([(OFF.plan(), 10.0), (CHAIN_OF_4, 10.05)], OFF.plan()),
        ([(OFF.plan(), 4.0), (CHAIN_OF_4, 10.0), (TREE, 10.05)], CHAIN_OF_4),
        ([(OFF.plan(), 4.0), (CHAIN_OF_4, 10.1), (TREE, 10.05), (ADAPTIVE_TREE, 10.0)], ADAPTIVE_TREE),
        ([(OFF.plan(), 4.0), (TREE, 11.0), (ADAPTIVE_TREE, 10.0)], TREE),
        ([(OFF.plan(), 4.0), (TREE, 10.0), (AHEAD, 10.05)], TREE),
        ([(OFF.plan(), 4.0), (TREE, 10.0), (AHEAD, 12.0)], AHEAD),
        ([(OFF.plan(), 4.0), (TREE, 10.0), (AHEAD, 8.0)], TREE),
    ],
)
def test_the_fastest_plan_is_chosen_unless_a_more_cautious_one_is_within_the_error(
    rates: list[tuple[Plan, float]], wanted: Plan
) -> None:
    assert chosen(by_measurement(*rates)).plan == wanted


def test_a_larger_error_asks_for_a_larger_difference() -> None:
    few = [ran(OFF.plan(), times(10.0, 0.5, 2, 4)), ran(TREE, times(11.0, 0.5, 2, 4))]
    many = [ran(OFF.plan(), times(10.0, 0.1, 8, 64)), ran(TREE, times(11.0, 0.1, 8, 64))]
    assert chosen(few).plan == OFF.plan()
    assert chosen(many).plan == TREE


def test_prediction_and_measurement_weigh_by_their_errors() -> None:
    plain = ran(OFF.plan(), times(5.0), times(5.0))
    surely = ran(TREE, times(10.6, 0.9), times(10.0, 0.02, 8, 64))
    ratio = surely.log_ratio(plain)
    predicted, measured = math.log(2), math.log(10.6 / 5)
    assert predicted < ratio.value < (predicted + measured) / 2, "replays of 2,048 tokens against scattered runs"
    assert ratio.error < TABLES_ERROR
    assert plain.log_ratio(surely).value == pytest.approx(-ratio.value)


def test_where_they_contradict_each_other_the_measurement_counts() -> None:
    plain = ran(OFF.plan(), times(5.0), times(5.0))
    wrong = ran(TREE, times(4.0, 0.1), times(10.0, 0.01, 8, 64))
    assert wrong.log_ratio(plain).value == pytest.approx(math.log(4 / 5), abs=0.02)


def test_draft_sources_are_expected_to_gain_until_they_were_run() -> None:
    results = [ran(OFF.plan(), times(4.0), times(4.0)), ran(ADAPTIVE_TREE, times(10.0), times(10.0, 0.02))]
    unknown = ran(WITH_SOURCES, NOTHING, times(10.0, 0.02))
    assert unknown.log_ratio(results[1]).value == pytest.approx(0.1)
    assert chosen([*results, ran(WITH_SOURCES, times(11.5, 0.05), times(10.0, 0.02))]).plan == WITH_SOURCES
    assert chosen([*results, ran(WITH_SOURCES, times(9.0, 0.05), times(10.0, 0.02))]).plan == ADAPTIVE_TREE


def test_drafting_ahead_is_not_taken_unless_it_was_run() -> None:
    results = [ran(OFF.plan(), times(4.0), times(4.0)), ran(TREE, times(10.0), times(10.0, 0.02))]
    assert chosen([*results, ran(AHEAD, NOTHING, times(10.0, 0.02))]).plan == TREE


def test_a_plan_that_cannot_win_is_run_no_more() -> None:
    off, slow, good, better = by_measurement((OFF.plan(), 4.0), (CHAIN_OF_4, 6.0), (TREE, 10.0), (ADAPTIVE_TREE, 10.3))
    results = [slow, good, better, off]
    few = [replace(one, times=BlockTimes(tuple(text[:4] for text in one.times.texts))) for one in results]
    assert [one.plan for one in still_open(few, few)] == [TREE, ADAPTIVE_TREE, OFF.plan()]
    clear = [slow, off, ran(TREE, times(20.0, 0.1))]
    assert still_open(clear, clear) == [], "what is left to learn changes nothing"


def test_nothing_is_run_again_where_the_difference_is_known() -> None:
    off, tree, adaptive = (
        ran(plan, times(rate)) for plan, rate in ((OFF.plan(), 4.0), (TREE, 10.0), (ADAPTIVE_TREE, 10.0))
    )
    assert still_open([off, tree, adaptive], [off, tree, adaptive]) == []


def test_plain_passes_that_were_not_run_have_the_mean_and_the_scatter_of_those_that_were() -> None:
    def off(*seconds: float) -> Validated:
        result = ran(OFF.plan(), NOTHING, times(10.0))
        passes = [PassRecord(Draft(TokenTree.root_only(1)), Accepted([0], [1]), one) for one in (9.0, 9.0, *seconds)]
        validate._add(result, passes, 12 * BLOCK, CostModel(CostTable([PassTime(1, 64, 100.0)])))
        return result

    steady, unsteady = off(0.1, 0.1, 0.1, 0.1, 0.1), off(0.05, 0.15, 0.1, 0.05, 0.15)
    assert len(unsteady.times.texts[0]) == 12
    assert steady.times.tokens_per_second == pytest.approx(10.0)
    assert unsteady.times.tokens_per_second == pytest.approx(10.0)
    assert steady.times.log_rate.error == pytest.approx(0.0)
    assert unsteady.times.log_rate.error > 0.1


def test_the_profile_gets_every_plan_that_was_run_fastest_first() -> None:
    results = by_measurement((CHAIN_OF_4, 9.0), (TREE, 11.0), (OFF.plan(), 4.0))
    tuned = tuned_plan(0.0, results, plain_rate(results[-1]))
    assert [one.plan for one in tuned.expected] == [TREE, CHAIN_OF_4, OFF.plan()]
    assert [one.tokens_per_second for one in tuned.expected] == pytest.approx([11.0, 9.0, 4.0])
    assert all(TABLES_ERROR < one.error / one.tokens_per_second < 2 * TABLES_ERROR for one in tuned.expected)
    assert tuned.plan == TREE
    assert (tuned.predicted_tokens_per_second, tuned.plain_tokens_per_second) == pytest.approx((11.0, 4.0))
    assert tuned.predicted_tokens_per_pass == pytest.approx(3.0)
    off = tuned_plan(0.0, by_measurement((TREE, 11.0), (OFF.plan(), 12.0)), Estimate(math.log(12.0), 0.01))
    assert off.plan == OFF.plan()
    assert [one.plan for one in off.expected] == [OFF.plan(), TREE]

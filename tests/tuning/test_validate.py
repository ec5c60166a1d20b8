"""Which plan is chosen by what plans did when they were run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE, MERGED
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan
from specrun.tuning.replay import Prediction
from specrun.tuning.validate import Validated, expectations, fastest

TREE = SPECEXEC.plan(16, 8)
AHEAD = replace(TREE, overlap=True)


CHAIN_OF_4 = CHAIN.plan(depth=4)


def ran(plan: Plan, tokens_per_second: float, predicted: float = 10.0) -> Validated:
    return Validated(Prediction(plan, predicted, 3.0), 0.0, tokens=600, passes=200, seconds=600 / tokens_per_second)


def test_the_fastest_plan_is_chosen_and_plain_decoding_where_none_pays() -> None:
    tuned = fastest(0.0, [ran(OFF.plan(), 4.0), ran(CHAIN_OF_4, 9.0), ran(TREE, 11.0)])
    assert (tuned.plan, tuned.other) == (TREE, None)
    assert tuned.predicted_tokens_per_second == pytest.approx(11.0), "200 passes of it were run, none was replayed"
    assert tuned.predicted_tokens_per_pass == pytest.approx(3.0)
    assert tuned.plain_tokens_per_second == pytest.approx(4.0)
    off = fastest(0.0, [ran(OFF.plan(), 12.0), ran(CHAIN_OF_4, 9.0), ran(TREE, 11.0)])
    assert (off.plan, off.other) == (OFF.plan(), TREE)
    assert (off.predicted_tokens_per_second, off.other_tokens_per_second) == pytest.approx((12.0, 11.0))


@pytest.mark.parametrize(("adaptive_rate", "is_taken"), [(9.8, True), (9.6, False), (10.5, True)])
def test_an_adaptive_tree_that_is_as_fast_as_a_fixed_plan_is_preferred(adaptive_rate: float, is_taken: bool) -> None:
    adaptive = ADAPTIVE.plan(16, 8, 8)
    tuned = fastest(0.0, [ran(OFF.plan(), 4.0), ran(TREE, 10.0), ran(adaptive, adaptive_rate)])
    assert tuned.plan == (adaptive if is_taken else TREE)


def test_predictions_count_for_as_many_passes_as_they_were_replayed_and_follow_the_machines_speed() -> None:
    replayed = replace(ran(TREE, 5.0), prediction=Prediction(TREE, 20.0, 3.0, (200,)))
    assert replayed.expected(1.0) == pytest.approx(10.0), "the geometric mean of 5 and 20"
    assert replayed.expected(0.25) == pytest.approx(5.0)
    often = replace(replayed, prediction=Prediction(TREE, 20.0, 3.0, (10_000,)))
    assert often.expected(1.0) == pytest.approx(10.0), "a measurement weighs at least half"


@pytest.mark.parametrize(("rate", "pays"), [(10.0, False), (8.0, False), (10.2, False), (12.0, True)])
def test_drafting_ahead_is_taken_where_it_was_seen_to_pay(rate: float, pays: bool) -> None:
    expected = expectations([ran(OFF.plan(), 4.0), ran(TREE, 10.0), ran(AHEAD, rate)], 1.0)
    assert (AHEAD in expected) == pays
    if pays:
        assert expected[AHEAD] == pytest.approx(expected[TREE] * 1.2)


@pytest.mark.parametrize(("rate", "taken"), [(10.0, True), (14.0, True), (9.8, True), (9.0, False)])
def test_draft_sources_join_unless_they_were_slower(rate: float, taken: bool) -> None:
    adaptive = ADAPTIVE.plan(16, 8, 8)
    merged = replace(adaptive, method=MERGED, budget=32, depth=31)
    ahead = replace(merged, overlap=True)
    expected = expectations([ran(OFF.plan(), 4.0), ran(adaptive, 10.0), ran(merged, rate), ran(ahead, 20.0)], 1.0)
    assert (merged in expected, adaptive in expected, ahead in expected) == (taken, not taken, taken)
    if taken:
        assert expected[ahead] == pytest.approx(expected[merged] * 20.0 / rate)

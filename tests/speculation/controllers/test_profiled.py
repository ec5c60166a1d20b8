"""The plan of a profile is kept while it pays, left when it stops paying, and found again, at little cost."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.controllers.profiled import ByTemperature, ProfiledPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import MERGED
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.guide import Guide
from specrun.speculation.record import PassRecord
from specrun.speculation.sample_and_match import Accepted
from specrun.speculation.tree import TokenTree

CHAIN = CHAIN.plan(depth=4)
PLAIN_SECONDS, CHAIN_SECONDS = 0.1, 0.15


def guide(plain_ms: float = 100.0) -> Guide:
    """A machine on which a pass over 5 tokens takes half as long again as one over 1. plain_ms: what the tables say of
    the latter.
    """
    return Guide(
        CostModel(CostTable([PassTime(1, 64, plain_ms), PassTime(5, 64, 140.0)]), CostTable([PassTime(1, 64, 2.0)]))
    )


def step(plan: Plan, n_tokens: int) -> PassRecord:
    """A step by `plan` that commits so many tokens (one if it drafts nothing)."""
    if not plan.depth:
        return PassRecord(TokenTree.root_only(0), Accepted([0], [0]), PLAIN_SECONDS, PLAIN_SECONDS, 0.0, 1, 64)
    tree = TokenTree.chain([0, 1, 2, 3, 4])
    accepted = Accepted(list(range(n_tokens)), [0] * n_tokens)
    return PassRecord(tree, accepted, CHAIN_SECONDS, CHAIN_SECONDS - 0.01, 0.01, 5, 64)


def run(plans: ProfiledPlan, tokens_a_pass: float, n_passes: int) -> tuple[float, int]:
    """Share of plain decoding's rate, and drafted passes."""
    rng = np.random.default_rng(0)
    tokens, seconds, drafted = 0, 0.0, 0
    for _ in range(n_passes):
        plan = plans.current
        low = int(tokens_a_pass)
        done = step(plan, low + int(rng.random() < tokens_a_pass - low))
        plans.record(done)
        tokens += done.n_tokens
        seconds += done.seconds
        drafted += plan.depth > 0
    return tokens / seconds * PLAIN_SECONDS, drafted


def test_a_plan_that_pays_is_kept() -> None:
    plans = ProfiledPlan(CHAIN, 20.0, guide())
    share, drafted = run(plans, 3.0, 500)
    assert drafted == 499, "one pass shows what plain decoding takes, and that there is no need to ask again"
    assert share == pytest.approx(2.0, rel=0.05)


def test_a_plan_that_does_not_pay_is_left_at_once_and_seldom_looked_at() -> None:
    plans = ProfiledPlan(CHAIN, 20.0, guide())
    run(plans, 1.0, 20)
    assert plans.is_off
    assert "does not pay" in str(plans)
    share, _ = run(plans, 1.0, 1000)
    assert share > 0.98


def test_a_plan_that_stops_paying_is_left_within_50_passes_and_comes_back() -> None:
    plans = ProfiledPlan(CHAIN, 20.0, guide())
    run(plans, 3.0, 200)
    run(plans, 1.0, 50)
    assert plans.is_off
    _, drafted = run(plans, 3.0, 1000)
    assert drafted > 500
    assert not plans.is_off


def test_a_plan_that_was_left_because_of_wrong_tables_is_taken_up_again() -> None:
    plans = ProfiledPlan(CHAIN, 20.0, guide(plain_ms=40.0))
    share, drafted = run(plans, 2.0, 200)
    assert drafted > 150
    assert share > 1.2


def test_a_plan_that_wrong_tables_make_look_good_is_left() -> None:
    plans = ProfiledPlan(CHAIN, 8.0, guide(plain_ms=250.0))
    run(plans, 1.0, 120)
    assert plans.is_off
    assert run(plans, 1.0, 1000)[0] > 0.98


def test_a_plan_with_draft_sources_is_left_for_these_alone_and_comes_back_when_they_are_right() -> None:
    merged = MERGED.plan(16, 8, 16)
    plans = ProfiledPlan(merged, 20.0, guide())
    n_passes = 0
    while plans.current == merged and n_passes < 20:
        plans.record(step(merged, 1))
        n_passes += 1
    assert plans.current == merged.follows(DRAFTLESS)
    assert not plans.is_off
    assert "draft sources alone" in str(plans)
    n_passes = 0
    while plans.current != merged and n_passes < 1000:
        plans.record(step(OFF.plan(), 1))  # the sources have no guess: passes over one token
        n_passes += 1
    assert plans.current == merged
    run(plans, 3.0, 100)
    assert plans.current == merged


def test_draft_sources_alone_are_left_as_well_where_they_lose() -> None:
    plans = ProfiledPlan(MERGED.plan(16, 8, 16), 20.0, guide())
    run(plans, 1.0, 60)
    assert plans.is_off
    assert run(plans, 1.0, 1000)[0] > 0.97


def test_off_looks_at_the_best_that_drafts_only_if_that_is_near_to_paying() -> None:
    near = ProfiledPlan(OFF.plan(), 10.0, guide(), CHAIN, 9.0)
    assert run(near, 1.0, 1000)[0] > 0.98
    _, drafted = run(near, 4.0, 2000)
    assert drafted > 500
    hopeless = ProfiledPlan(OFF.plan(), 10.0, guide(), CHAIN, 3.0)
    assert run(hopeless, 4.0, 2000)[1] == 0


def test_the_rate_to_beat_begins_with_the_promise_and_follows_what_is_measured() -> None:
    plans = ProfiledPlan(CHAIN, 20.0, guide())
    plans.record(step(CHAIN, 5))
    assert plans.guide.rate == pytest.approx(0.02, rel=0.3), "one lucky pass decides nothing"
    run(plans, 2.0, 400)
    assert plans.guide.rate == pytest.approx(2.0 / CHAIN_SECONDS / 1e3, rel=0.1)


def test_a_generation_follows_the_plan_of_the_nearest_temperature() -> None:
    plans = ByTemperature({0.8: ProfiledPlan(CHAIN, 20.0, guide()), 0.0: ProfiledPlan(OFF.plan(), 10.0, guide())})
    for temperature, plan in ((0.0, OFF.plan()), (0.1, CHAIN), (0.8, CHAIN), (2.0, CHAIN)):
        plans.begin(temperature)
        assert plans.current == plan

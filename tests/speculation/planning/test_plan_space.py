"""The bounds of plans follow the draft and the costs."""

from __future__ import annotations

import pytest

from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.pass_times import ExpertGrowth
from specrun.speculation.planning.plan_space import PlanSpace, deepest, largest_that_pays

TARGET = CostTable([PassTime(1, 64, 100.0), PassTime(128, 64, 150.0)])


def costs(draft_ms: float) -> CostModel:
    return CostModel(TARGET, CostTable([PassTime(1, 64, draft_ms), PassTime(32, 64, 2 * draft_ms)]))


@pytest.mark.parametrize(("agreement", "depth"), [(0.0, 16), (0.6, 16), (0.92, 51), (0.96, 64), (1.0, 64)])
def test_a_better_draft_is_followed_deeper(agreement: float, depth: int) -> None:
    assert deepest(costs(1.0), [agreement, 0.1]) == depth


def test_a_level_must_be_worth_its_draft_pass() -> None:
    depths = [deepest(costs(ms), [0.96]) for ms in (1.0, 5.0, 20.0, 90.0, 200.0)]
    assert depths == sorted(depths, reverse=True)
    assert (depths[0], depths[-1]) == (64, 16)
    assert deepest(CostModel(TARGET), [0.96]) == 16, "without a draft no pass is spared"


def test_a_level_must_be_worth_what_its_node_adds_to_the_pass() -> None:
    dear = CostTable([PassTime(1, 64, 20.0), PassTime(4, 64, 56.0), PassTime(16, 64, 200.0)])
    assert deepest(CostModel(dear, costs(1.0).draft), [0.96]) == 16


def test_plans_reach_as_deep_and_as_wide_as_was_measured() -> None:
    (adaptive,) = ADAPTIVE.candidates(PlanSpace(costs(1.0), 128, 64, [0.96]))
    assert (adaptive.depth, adaptive.width) == (64, 32)
    assert max(plan.depth for plan in CHAIN.candidates(PlanSpace(costs(1.0), 128, 64, [0.96]))) == 64
    assert max(plan.depth for plan in CHAIN.candidates(PlanSpace(costs(1.0), 128, 64, [0.6]))) == 16


def test_chains_of_a_mixture_must_pay_for_its_experts() -> None:
    row = 100 * ExpertGrowth(32, 4, 1.0).row(64)
    target = CostTable([PassTime(n, 64, float(row[n])) for n in (1, 2, 3, 4, 5, 6, 8, 16, 32, 64)])
    mixture = PlanSpace(CostModel(target, costs(15.0).draft), 64, 64, [0.9])
    dense = PlanSpace(costs(15.0), 64, 64, [0.9])
    assert dense.may_pay(2, 1)
    assert dense.may_pay(5, 4)
    assert not mixture.may_pay(2, 1), "two tokens take 1.9 times as long, and drafting takes time too"
    assert mixture.may_pay(17, 16), "in a long chain tokens share experts"


def test_trees_that_are_far_from_paying_are_not_recorded() -> None:
    sizes = (1, 2, 4, 8, 16, 32, 64, 128)
    draft = CostTable([PassTime(n, 0, 10.0) for n in (1, 32)])
    streamed = CostModel(CostTable([PassTime(n, 0, 400.0 + n) for n in sizes]), draft)
    in_ram = CostModel(CostTable([PassTime(n, 0, 50.0 * n) for n in sizes]), draft)
    assert largest_that_pays(streamed, [0.7, 0.1], 128) == 128
    assert largest_that_pays(streamed, [0.7, 0.1], 32) == 32
    assert largest_that_pays(in_ram, [0.7, 0.1], 128) == 2
    assert largest_that_pays(in_ram, [0.0, 0.0], 128) == 1

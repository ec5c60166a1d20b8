"""The fastest plan is found, kept, left when it stops being the fastest, and trials of the others stay cheap."""

from __future__ import annotations

import pytest

from specrun.speculation.controllers.chooser import FastestPlan, FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan
from specrun.speculation.record import PassRecord
from specrun.speculation.sample_and_match import Accepted
from specrun.speculation.tree import TokenTree

TREE, CHAIN, OFF = SPECEXEC.plan(16, 8), CHAIN.plan(depth=4), OFF.plan()

# plan -> (tokens a pass, seconds a pass)
Costs = dict[Plan, tuple[int, float]]

TREE_WINS: Costs = {TREE: (4, 1.0), CHAIN: (2, 1.0), OFF: (1, 1.0)}
CHAIN_WINS: Costs = {TREE: (3, 2.0), CHAIN: (2, 1.0), OFF: (1, 0.9)}
OFF_WINS: Costs = {TREE: (1, 3.0), CHAIN: (1, 2.0), OFF: (1, 1.0)}


def step(n_tokens: int, seconds: float) -> PassRecord:
    """A step that committed so many tokens in so many seconds."""
    return PassRecord(TokenTree.root_only(0), Accepted([0] * n_tokens, [0] * n_tokens), seconds)


def run(plans: FastestPlan, costs: Costs, n_passes: int) -> tuple[float, dict[Plan, int]]:
    """Tokens a second over `n_passes`, and how many passes went to each plan."""
    tokens, seconds = 0, 0.0
    passes = dict.fromkeys(costs, 0)
    for _ in range(n_passes):
        plan = plans.current
        passes[plan] += 1
        plans.record(step(*costs[plan]))
        tokens += costs[plan][0]
        seconds += costs[plan][1]
    return tokens / seconds, passes


@pytest.mark.parametrize(
    ("costs", "best"), [(TREE_WINS, TREE), (CHAIN_WINS, CHAIN), (OFF_WINS, OFF)], ids=["tree", "chain", "off"]
)
def test_the_fastest_wins_and_gets_nearly_all_passes(costs: Costs, best: Plan) -> None:
    plans = FastestPlan([TREE, CHAIN, OFF])
    run(plans, costs, 20)
    assert plans.winner == best
    rate, passes = run(plans, costs, 2000)
    assert passes[best] > 0.95 * 2000
    n_tokens, seconds = costs[best]
    assert rate > 0.97 * n_tokens / seconds


def test_all_are_tried_before_one_is_called_the_winner() -> None:
    plans = FastestPlan([TREE, CHAIN, OFF])
    assert plans.current == TREE
    assert plans.winner is None
    run(plans, TREE_WINS, 9)
    assert plans.winner is None
    run(plans, TREE_WINS, 2)
    assert plans.winner == TREE
    assert set(plans.rates) == {TREE, CHAIN, OFF}


@pytest.mark.parametrize(("before", "after", "best"), [(TREE_WINS, OFF_WINS, OFF), (OFF_WINS, TREE_WINS, TREE)])
def test_it_changes_its_mind_when_the_text_changes(before: Costs, after: Costs, best: Plan) -> None:
    plans = FastestPlan([TREE, CHAIN, OFF])
    run(plans, before, 60)
    assert plans.winner != best
    run(plans, after, 1500)
    assert plans.winner == best


def test_a_collapse_is_answered_within_fifty_passes() -> None:
    plans = FastestPlan([TREE, CHAIN, OFF])
    run(plans, TREE_WINS, 1000)
    assert plans.winner == TREE
    run(plans, OFF_WINS, 50)
    assert plans.winner == OFF


def test_the_first_pass_of_a_trial_is_not_held_against_a_plan() -> None:
    # After a long time without it the draft has much text to catch up with.
    plans = FastestPlan([TREE, OFF])
    plans.record(step(4, 100.0))
    run(plans, {TREE: (4, 1.0), OFF: (1, 1.0)}, 6)
    assert plans.winner == TREE


def test_a_fixed_plan_stays() -> None:
    plan = FixedPlan(CHAIN)
    plan.record(step(1, 100.0))
    assert plan.current == CHAIN


def test_it_says_what_it_measured() -> None:
    plans = FastestPlan([TREE, CHAIN, OFF])
    assert str(plans) == "auto"
    run(plans, OFF_WINS, 20)
    assert str(plans).startswith("auto (off 1.0 tokens/s; chain of 4 0.5")

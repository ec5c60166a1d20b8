"""What is foretold of a pass is what was known before it: costs, and calibrated chances."""

from __future__ import annotations

import numpy as np
import pytest

import specrun
from specrun.bench import BenchPrompt
from specrun.bench.rows import AUTO_ROW, CHAIN_ROW, BenchSettings
from specrun.bench.runner import Bench, Foretold
from specrun.long_run import Run
from specrun.sampling import SamplingParameters
from specrun.speculation.accept import Accepted
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafter import Draft
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.guide import Guide, PassRecord, RunCosts
from specrun.speculation.tree import TokenTree

PLAIN, TREE, LEVEL = 100.0, 160.0, 5.0  # milliseconds
COSTS = CostModel(CostTable([PassTime(1, 0, PLAIN), PassTime(3, 0, TREE)]), CostTable([PassTime(1, 0, LEVEL)]))


def a_pass(tree: TokenTree, ms: float) -> PassRecord:
    draft = Draft(tree, (1,) * (len(tree) - 1))
    return PassRecord(draft, Accepted([0], [9]), ms / 1e3, ms / 1e3, 0.0, len(tree))


def foretold(plan: Plan, tree: TokenTree, ms: float = TREE) -> Foretold:
    chooser = Foretold(FixedPlan(plan, Guide(RunCosts.of(COSTS), Calibration())))
    chooser.record(a_pass(tree, ms))
    return chooser


def test_a_plain_pass_brings_one_token_in_the_time_of_a_plain_pass() -> None:
    assert foretold(OFF.plan(), TokenTree.root_only(0), 3 * PLAIN).tokens_per_second == pytest.approx(1e3 / PLAIN)


def test_the_scores_of_adaptive_trees_are_chances() -> None:
    tree = TokenTree.build([0, 1, 2], [-1, 0, 1], np.log([1.0, 0.5, 0.25]), [np.nan, 0.9, 0.9])
    result = foretold(ADAPTIVE.plan(3, 2), tree)
    assert result.tokens == pytest.approx(1.75)
    assert result.ms == pytest.approx(TREE + 2 * LEVEL)


def test_other_trees_have_the_calibrated_chances_of_the_drafts_probabilities() -> None:
    tree = TokenTree.build([0, 1, 2], [-1, 0, 1], [0.0, -1.0, -2.0], [np.nan, 0.9, 0.9])
    chance = float(Calibration().chances(1, np.array([0.9]))[0])
    assert foretold(CHAIN.plan(depth=2), tree).tokens == pytest.approx(1 + chance + chance**2)


def test_a_chain_without_probabilities_is_not_foretold() -> None:
    assert foretold(CHAIN.plan(depth=2), TokenTree.chain([0, 1, 2])).tokens_per_second is None


def test_a_pass_counts_before_it_is_learned_from() -> None:
    chooser = Foretold(FixedPlan(OFF.plan(), Guide(RunCosts.of(COSTS))))
    for _ in range(2):
        chooser.record(a_pass(TokenTree.root_only(0), 2 * PLAIN))
    assert PLAIN + PLAIN < chooser.ms < 2 * PLAIN + 2 * PLAIN


def test_nothing_is_foretold_without_a_guide() -> None:
    chooser = Foretold(FixedPlan(OFF.plan()))
    chooser.record(a_pass(TokenTree.root_only(0), PLAIN))
    assert chooser.tokens_per_second is None


@pytest.mark.slow
def test_without_a_profile_auto_is_foretold_and_a_chosen_plan_has_the_rate_that_chose_it() -> None:
    settings = BenchSettings(SamplingParameters(temperature=0.0), 12, 1, methods=(CHAIN_ROW, AUTO_ROW), raw=True)
    with specrun.load(learn=False) as model:
        rows = Bench(model, settings, Run(lambda _: None)).run([BenchPrompt("code", "def f():")])
    off, chain, auto = (row.predicted_tokens_per_second for row in rows)
    assert None not in (off, chain, auto)
    assert auto not in (off, chain)

"""Plans on made texts whose best plan is known."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.long_run import Run
from specrun.profiles.profile import Acceptance
from specrun.sampling import Candidates
from specrun.speculation.drafters.cost_aware import ADAPTIVE
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.plan_space import PlanSpace
from specrun.tuning.choose import candidates, ranked
from specrun.tuning.replay import Prediction, predict
from specrun.tuning.trace import MeasuredAcceptance, Path, Position, Trace, calibrate

N_POSITIONS, DEEPEST = 256, 64
WRONG = 9
SCORES = np.log([0.9, 0.1])

# A pass over 128 tokens costs half more than one over 1, a draft pass a hundredth of it.
STREAMED = CostModel(
    CostTable([PassTime(n, 64, 600.0 + 2.5 * n) for n in (1, 2, 4, 8, 16, 32, 64, 128)]),
    CostTable([PassTime(1, 64, 6.0), PassTime(16, 64, 7.0)]),
)
# A pass takes as long as its tokens one by one.
IN_RAM = CostModel(CostTable([PassTime(n, 64, 20.0 * n) for n in (1, 2, 4, 8, 16)]), CostTable([PassTime(1, 64, 1.0)]))


def text(agreement: float, rng: np.random.Generator) -> Trace:
    """A text whose next token is the draft's best candidate with this chance, and else its second."""
    tokens = rng.integers(0, WRONG, N_POSITIONS + DEEPEST).tolist()
    is_best = rng.random(len(tokens)) < agreement
    positions = []
    for start in range(N_POSITIONS):
        continuation = tokens[start : start + DEEPEST]
        children: dict[Path, Candidates] = {}
        for depth, token in enumerate(continuation):
            pair = [token, WRONG] if is_best[start + depth] else [WRONG, token]
            children[tuple(continuation[:depth])] = Candidates(np.array(pair, np.int64), SCORES)
        positions.append(Position(start + 64, continuation, children))
    return Trace(positions)


def measured(agreement: float) -> MeasuredAcceptance:
    rng = np.random.default_rng(3)
    traces = [text(agreement, rng) for _ in range(4)]
    positional = [agreement, 1 - agreement]
    return MeasuredAcceptance(Acceptance(0.0, calibrate(traces), positional, 4 * N_POSITIONS), traces)


@pytest.mark.slow
@pytest.mark.parametrize(("agreement", "gain"), [(0.7, 1.0), (0.92, 1.05), (0.96, 1.3)])
def test_a_good_draft_gains_from_deeper_trees(agreement: float, gain: float) -> None:
    found = measured(agreement)
    (plan,) = ADAPTIVE.candidates(PlanSpace(STREAMED, 128, 64, found.acceptance.positional))
    calibrations = found.calibrations_of_others()

    def rate(depth: int) -> float:
        sized = ADAPTIVE.plan(plan.budget, depth, plan.width)
        return predict(sized, found.traces, STREAMED, calibrations, 0.0).tokens_per_second

    assert rate(plan.depth) >= gain * rate(16)
    assert rate(plan.depth) >= 0.97 * rate(DEEPEST), "deeper ones would not bring more"


@pytest.mark.slow
def test_chains_as_deep_as_pays_are_among_the_plans() -> None:
    found = measured(0.96)
    plans = [plan for plan in candidates(STREAMED, 128, 64, found.acceptance.positional) if plan.is_chain]
    best = ranked(plans, found, STREAMED, Run())[0]
    assert best.plan.depth > 16
    assert best.plan.depth < DEEPEST, "a chain of 64 is rarely accepted to its end"


@pytest.mark.slow
def test_plain_decoding_is_predicted_best_where_tokens_cost_as_much_in_a_pass() -> None:
    found = measured(0.7)
    predictions = ranked(candidates(IN_RAM, 16, 64, found.acceptance.positional), found, IN_RAM, Run())
    assert predictions[0].tokens_per_second == pytest.approx(50.0)
    assert not predictions[0].plan.drafts or predictions[0].tokens_per_pass == 1.0


@pytest.mark.slow
def test_plans_that_are_far_behind_are_replayed_on_few_texts_only() -> None:
    found = measured(0.7)
    predictions = ranked(candidates(STREAMED, 128, 64, found.acceptance.positional), found, STREAMED, Run())

    def n_texts(prediction: Prediction) -> int:
        return len(prediction.times.texts)

    assert n_texts(predictions[0]) == 4
    assert {n_texts(one) for one in predictions} == {1, 4}
    assert min(one.tokens_per_second for one in predictions if n_texts(one) == 4 and one.plan.drafts) > max(
        0.5 * one.tokens_per_second for one in predictions
    )


@pytest.mark.slow
def test_when_the_time_is_over_the_likely_best_are_known_best() -> None:
    found = measured(0.92)
    predictions = ranked(candidates(STREAMED, 128, 64, found.acceptance.positional), found, STREAMED, Run().stage(-1))
    whole = [one for one in predictions if len(one.times.texts) == 4]
    assert 1 <= len([one for one in whole if one.plan.drafts]) <= 8 < len(predictions) // 2
    assert any(not one.plan.drafts for one in whole)

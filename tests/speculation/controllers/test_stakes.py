"""The loss_budget: what may be lost by trying plans is bounded, whatever they do."""

from __future__ import annotations

import pytest

from specrun.speculation.controllers.stakes import LossBudget


def test_plain_passes_fill_it_slowly_and_up_to_a_bound() -> None:
    loss_budget = LossBudget(is_proven=False)
    stake = loss_budget.balance
    loss_budget.save(10.0)
    assert loss_budget.balance == pytest.approx(stake + 0.1)
    for _ in range(100):
        loss_budget.save(100.0)
    assert loss_budget.balance == LossBudget(is_proven=True).balance


def test_saving_takes_nothing_of_what_was_won() -> None:
    loss_budget = LossBudget(is_proven=True)
    loss_budget.book(100.0, deviation=10.0)
    won = loss_budget.balance
    loss_budget.save(1.0)
    assert loss_budget.balance == won


@pytest.mark.parametrize("deviation", [0.0, 0.5, 5.0])
def test_what_is_won_is_lost_again_within_a_few_deviations(deviation: float) -> None:
    loss_budget = LossBudget(is_proven=False)
    for _ in range(50):
        loss_budget.book(3.0, deviation)
    assert loss_budget.balance == min(max(4 * deviation, LossBudget(is_proven=False).balance), 8.0)


def test_sources_that_go_on_get_a_stake_of_their_own() -> None:
    loss_budget = LossBudget(is_proven=False)
    loss_budget.book(-5.0, deviation=1.0)
    loss_budget.end_plan(sources_go_on=True)
    assert 0 < loss_budget.balance < LossBudget(is_proven=False).balance

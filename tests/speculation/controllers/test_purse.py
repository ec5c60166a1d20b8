"""The purse: what may be lost by trying plans is bounded, whatever they do."""

from __future__ import annotations

import pytest

from specrun.speculation.controllers.purse import Purse


def test_plain_passes_fill_it_slowly_and_up_to_a_bound() -> None:
    purse = Purse(is_proven=False)
    stake = purse.balance
    purse.save(10.0)
    assert purse.balance == pytest.approx(stake + 0.1)
    for _ in range(100):
        purse.save(100.0)
    assert purse.balance == Purse(is_proven=True).balance


def test_saving_takes_nothing_of_what_was_won() -> None:
    purse = Purse(is_proven=True)
    purse.book(100.0, deviation=10.0)
    won = purse.balance
    purse.save(1.0)
    assert purse.balance == won


@pytest.mark.parametrize("deviation", [0.0, 0.5, 5.0])
def test_what_is_won_is_lost_again_within_a_few_deviations(deviation: float) -> None:
    purse = Purse(is_proven=False)
    for _ in range(50):
        purse.book(3.0, deviation)
    assert purse.balance == min(max(4 * deviation, Purse(is_proven=False).balance), 8.0)


def test_sources_that_go_on_get_a_stake_of_their_own() -> None:
    purse = Purse(is_proven=False)
    purse.book(-5.0, deviation=1.0)
    purse.end_plan(sources_go_on=True)
    assert 0 < purse.balance < Purse(is_proven=False).balance

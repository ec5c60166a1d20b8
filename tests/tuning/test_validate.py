"""What runs say of plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specrun.speculation.drafters.cost_aware import ADAPTIVE, MERGED
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan
from specrun.tuning.replay import Prediction
from specrun.tuning.validate import Validated, expectations

TREE = SPECEXEC.plan(16, 8)
AHEAD = replace(TREE, overlap=True)


def ran(plan: Plan, tokens_per_second: float) -> Validated:
    return Validated(Prediction(plan, 10.0, 3.0), 0.0, tokens=600, passes=200, seconds=600 / tokens_per_second)


@pytest.mark.parametrize(("rate", "pays"), [(10.0, False), (8.0, False), (10.2, False), (12.0, True)])
def test_drafting_ahead_is_taken_where_it_was_seen_to_pay(rate: float, pays: bool) -> None:
    found = expectations([ran(OFF.plan(), 4.0), ran(TREE, 10.0), ran(AHEAD, rate)], 1.0)
    assert (AHEAD in found) == pays
    if pays:
        assert found[AHEAD] == pytest.approx(found[TREE] * 1.2)


@pytest.mark.parametrize(("rate", "taken"), [(10.0, True), (14.0, True), (9.8, True), (9.0, False)])
def test_draft_sources_join_unless_they_were_slower(rate: float, taken: bool) -> None:
    adaptive = ADAPTIVE.plan(16, 8, 8)
    merged = replace(adaptive, method=MERGED, budget=32, depth=31)
    ahead = replace(merged, overlap=True)
    found = expectations([ran(OFF.plan(), 4.0), ran(adaptive, 10.0), ran(merged, rate), ran(ahead, 20.0)], 1.0)
    assert (merged in found, adaptive in found, ahead in found) == (taken, not taken, taken)
    if taken:
        assert found[ahead] == pytest.approx(found[merged] * 20.0 / rate)

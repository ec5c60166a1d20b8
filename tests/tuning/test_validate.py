"""What runs say of plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specrun.speculation import Plan
from specrun.tuning.simulate import Prediction
from specrun.tuning.validate import Validated, expectations

TREE = Plan.tree(16, 8)
AHEAD = replace(TREE, overlap=True)


def ran(plan: Plan, tokens_per_second: float) -> Validated:
    return Validated(Prediction(plan, 10.0, 3.0), 0.0, tokens=600, passes=200, seconds=600 / tokens_per_second)


@pytest.mark.parametrize(("rate", "pays"), [(10.0, False), (8.0, False), (10.2, False), (12.0, True)])
def test_drafting_ahead_is_taken_where_it_was_seen_to_pay(rate: float, pays: bool) -> None:
    found = expectations([ran(Plan.off(), 4.0), ran(TREE, 10.0), ran(AHEAD, rate)], 1.0)
    assert (AHEAD in found) == pays
    if pays:
        assert found[AHEAD] == pytest.approx(found[TREE] * 1.2)

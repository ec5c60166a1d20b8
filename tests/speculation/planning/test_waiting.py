"""How many tokens wait follows from what a further token costs beside a pass."""

from __future__ import annotations

import pytest

from specrun.speculation.planning.costs import CostTable, PassTime
from specrun.speculation.planning.waiting import most_waiting


def table(fixed: float, each: float) -> CostTable:
    return CostTable([PassTime(n, 64, fixed + each * n) for n in (1, 2, 4, 8, 16, 32)])


def cost(n_rounds: int, fixed: float, each: float, accepted: float) -> float:
    """Milliseconds a pass of so many passes and one over what then waits, beyond those of the passes themselves."""
    waiting = sum(each * accepted * i for i in range(n_rounds))
    return (waiting + fixed + each * accepted * n_rounds) / n_rounds


@pytest.mark.parametrize(("fixed", "each"), [(100.0, 1.0), (100.0, 5.0), (70.0, 30.0)])
def test_it_is_the_cheapest_number_of_passes(fixed: float, each: float) -> None:
    best = min(range(1, 100), key=lambda n_rounds: cost(n_rounds, fixed, each, 2.0))
    assert most_waiting(table(fixed, each)) == pytest.approx(2.0 * best, abs=1.5)


def test_it_has_bounds() -> None:
    assert most_waiting(table(100.0, 0.0)) == 48
    assert most_waiting(table(0.0, 10.0)) == 2
    assert most_waiting(CostTable([PassTime(1, 64, 5.0)])) == 48

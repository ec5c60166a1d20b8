"""When memory counts as short, and how much is then to be given back."""

from __future__ import annotations

import pytest

from specrun.hardware.memory import Memory
from specrun.hardware.pressure import Pressure
from specrun.hardware.residency import margin_bytes


class Machine:
    """Memory that is free, a clock, and how often somebody looked."""

    def __init__(self) -> None:
        self.now, self.free, self.n_looks = 0.0, 100, 0
        self.pressure = Pressure(100, self._look, lambda: self.now)

    def _look(self) -> int:
        self.n_looks += 1
        return self.free

    def after(self, seconds: float, free: int) -> int:
        self.now += seconds
        self.free = free
        return self.pressure.shortage()


def test_what_is_missing_of_the_margin_is_to_be_given_back() -> None:
    machine = Machine()
    assert machine.after(2, 100) == 0
    assert machine.after(2, 50) == 0, "half of the margin is enough"
    assert machine.after(2, 49) == 51
    assert machine.after(2, 0) == 100
    assert machine.after(2, 200) == 0


def test_it_looks_at_most_four_times_a_second() -> None:
    machine = Machine()
    assert [machine.after(1 / 16, 0) for _ in range(9)] == [0, 0, 0, 100, 0, 0, 0, 100, 0]
    assert machine.n_looks == 2


def test_the_margin_is_that_of_the_plan_made_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [8 * 10**9]
    monkeypatch.setattr(Memory, "read", lambda: Memory(10**10, free[0]))
    monkeypatch.setattr("specrun.hardware.pressure._INTERVAL", 0.0)
    pressure = Pressure.watch()
    assert pressure.shortage() == 0
    free[0] = 10**8
    assert pressure.shortage() == margin_bytes(8 * 10**9) - 10**8

"""The rules by which trials choose: margin, deadline and what is left out. No model is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from specrun.loading import trial
from specrun.loading.trial import CLEARLY, Outcome, best_of, is_faster, is_time
from specrun.long_run import Run


@dataclass
class Machine:
    """Measures candidates, which are numbers of milliseconds; each measurement takes ten seconds of its clock."""

    now: float = 0.0
    measured: list[float] = field(default_factory=list)

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Inside the block its clock is that of the trials."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(trial.clock, "now", lambda: self.now)
            yield

    def measure(self, candidate: float, _best: float | None) -> float | None:
        self.now += 10
        self.measured.append(candidate)
        return candidate if math.isfinite(candidate) else None


def tried(candidates: Sequence[float], deadline: float = math.inf) -> tuple[Outcome[float, float], list[float]]:
    """The outcome, and what was measured."""
    machine = Machine()
    run = Run(deadline=deadline)
    with machine.clock():
        return best_of(candidates, machine.measure, is_faster, run), machine.measured


def test_a_candidate_must_be_clearly_faster_than_the_best_so_far() -> None:
    assert is_faster(97.0, 100.0)
    assert not is_faster(100 / CLEARLY, 100.0)
    assert not is_faster(97.0, 100.0, 1.05)
    assert is_faster(101.0, 100.0, 1 / CLEARLY), "a preferred candidate may even be a little slower"
    assert tried([100.0, 98.0])[0].best == 100.0
    assert tried([100.0, 98.0, 96.0])[0].best == 96.0
    assert tried([100.0, 96.0, 94.0])[0].best == 96.0, "it is compared with the best so far"


def test_all_that_was_found_is_returned_in_order() -> None:
    outcome, _ = tried([100.0, 50.0, 70.0])
    assert outcome == Outcome(50.0, [100.0, 50.0, 70.0], ())
    assert tried([])[0] == Outcome(None, [], ())


def test_what_is_impossible_is_left_out() -> None:
    outcome, measured = tried([math.inf, 100.0, math.inf, 50.0])
    assert (outcome.best, outcome.tried) == (50.0, [100.0, 50.0])
    assert len(measured) == 4
    assert tried([math.inf])[0] == Outcome(None, [], ())


def test_each_is_tried_on_top_of_the_best_so_far() -> None:
    ms = {"": 100, "a": 90, "ab": 110, "ac": 80}

    def measure(change: str, best: str | None) -> str:
        return (best or "") + change

    outcome = best_of(["", "a", "b", "c"], measure, lambda new, best: is_faster(ms[new], ms[best]))
    assert outcome.best == "ac"
    assert outcome.tried == ["", "a", "ab", "ac"]


@pytest.mark.parametrize(("deadline", "n_measured"), [(-1, 1), (14, 1), (15, 2), (24, 2), (25, 3), (1000, 4)])
def test_half_of_a_usual_measurement_must_fit_before_the_deadline(deadline: float, n_measured: int) -> None:
    outcome, measured = tried([4.0, 3.0, 2.0, 1.0], deadline)
    assert len(measured) == n_measured
    assert outcome.best == measured[-1], "there is a best one in any case"
    assert list(outcome.untried) == [4.0, 3.0, 2.0, 1.0][n_measured:]


def test_after_impossible_ones_there_is_a_best_one_even_so() -> None:
    assert tried([math.inf, math.inf, 3.0, 2.0], deadline=-1)[0] == Outcome(3.0, [3.0], [2.0])


def test_is_time_compares_with_the_deadline() -> None:
    run = Run(deadline=10.0)
    with Machine(now=7.0).clock():
        assert is_time(3.0, run)
        assert not is_time(3.1, run)
    assert is_time(1e9, Run())


def test_an_interrupted_run_ends_instead_of_running_out_of_time() -> None:
    measured = list[float]()

    def measure(candidate: float, _best: float | None) -> float:
        measured.append(candidate)
        return candidate

    run = Run(interrupted=lambda: bool(measured), deadline=-1)
    with pytest.raises(KeyboardInterrupt):
        best_of([3.0, 2.0], measure, is_faster, run)
    assert measured == [3.0]

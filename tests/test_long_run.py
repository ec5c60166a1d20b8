"""What a long command passes down: progress, a deadline, and the user's wish to end it."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrun.long_run import Run


def test_a_stage_is_over_after_its_time_and_the_run_is_not() -> None:
    run = Run()
    assert not run.is_over()
    assert run.stage(-1).is_over()
    assert not run.stage(1000).is_over()
    assert not run.is_over()


def test_an_interrupt_ends_a_run_at_the_next_question() -> None:
    pressed: list[bool] = []
    run = Run(interrupted=lambda: bool(pressed)).stage(1000)
    run.show("one")
    assert not run.is_over()
    pressed.append(True)
    with pytest.raises(KeyboardInterrupt):
        run.is_over()
    with pytest.raises(KeyboardInterrupt):
        run.show("two")


def test_the_time_that_is_left_is_shown_where_it_is_known() -> None:
    shown: list[str] = []
    run = Run(shown.append)
    run.show("text")
    run.expected_to_take(100).labelled("target").show("passes")
    run.expected_to_take(-1).show("text")
    assert shown == ["text", "target: passes · about 100 s left", "text · nearly done"]


def test_overrunning_is_not_called_nearly_done_for_ever() -> None:
    shown: list[str] = []
    Run(shown.append).expected_to_take(-300).show("text")
    assert shown == ["text · 5 min longer than expected"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds on the clock, which stands still."""
    seconds = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    return seconds


def test_work_that_is_counted_is_told_once_and_its_end_is_known_by_what_is_done(clock: list[float]) -> None:
    shown, notes = list[str](), list[str]()
    run = Run(shown.append, notes.append).work("eight texts")
    run.done(0).show("first")
    clock[0] += 30
    run.done(1 / 8).show("second")
    clock[0] += 30
    run.part(1, 4).done(0).show("third")
    assert shown == ["first", "second · 12% · about 4 min left", "third · 25% · about 3 min left"]
    assert notes == ["eight texts: about 4 min more, as the first 12% took 30 s"]


def test_work_of_unlike_parts_is_told_when_the_rest_can_be_judged(clock: list[float]) -> None:
    shown, notes = list[str](), list[str]()
    run = Run(shown.append, notes.append).work("two texts, twice each", told_from=0.5)
    clock[0] += 10
    run.done(0.25).show("first again")
    assert (shown, notes) == (["first again · 25%"], [])
    clock[0] += 110
    run.done(0.5).show("second")
    assert shown[1:] == ["second · 50% · about 2 min left"]
    assert notes == ["two texts, twice each: about 2 min more, as the first 50% took 2 min"]


def test_what_is_over_soon_is_not_told(clock: list[float]) -> None:
    notes = list[str]()
    run = Run(note=notes.append).work("two texts")
    clock[0] += 3
    run.done(0.5).show("second")
    assert notes == []


@given(st.lists(st.tuples(st.floats(0.1, 20), st.floats(0.06, 0.1)), min_size=1, max_size=9))
def test_the_time_left_grows_only_where_the_end_was_far_off(parts: list[tuple[float, float]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        seconds, share, before = 0.0, 0.0, math.inf
        patch.setattr(time, "perf_counter", lambda: seconds)
        run = Run().work("work")
        for took, more in parts:
            seconds, share = seconds + took, share + more
            done = run.done(share)
            done.show("text")
            assert done.expected_end is not None
            left = run.shown.left
            assert left <= done.expected_end - seconds
            assert left <= before or left >= 1.5 * before
            before = left

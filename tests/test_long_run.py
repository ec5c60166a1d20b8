"""What a long command passes down: progress, a deadline, and the user's wish to end it."""

from __future__ import annotations

import pytest

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

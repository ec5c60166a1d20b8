"""Events that can wait wake nobody who comes again by himself, and he does so only where that pays."""

from __future__ import annotations

import pytest

from specrun.serving.outbox import Outbox

REST = 20.0


@pytest.fixture
def outbox() -> Outbox[str]:
    return Outbox()


def test_slow_events_wake_each_time(outbox: Outbox[str]) -> None:
    for now in (0.0, 25.0, 50.0, 75.0):
        assert outbox.put("a", can_wait=True)
        assert outbox.take(now, REST) == ["a"]
        assert not outbox.rests


def test_fast_events_are_gathered_as_long_as_they_come(outbox: Outbox[str]) -> None:
    for now in (0.0, 2.0):
        assert outbox.put("a", can_wait=True)
        assert outbox.take(now, REST) == ["a"]
    for now in (22.0, 45.0):
        assert outbox.rests
        assert not outbox.put("b", can_wait=True)
        assert not outbox.put("c", can_wait=True)
        assert outbox.take(now, REST) == ["b", "c"]
    assert outbox.rests
    assert outbox.take(65.0, REST) == []  # it has come in vain
    assert not outbox.rests
    assert outbox.put("d", can_wait=True)
    assert outbox.take(66.0, REST) == ["d"]
    assert not outbox.rests


def test_events_of_before_the_first_look_wake_each(outbox: Outbox[str]) -> None:
    assert outbox.put("a", can_wait=True)
    assert outbox.put("b", can_wait=True)
    assert outbox.take(0.0, REST) == ["a", "b"]


def test_what_cannot_wait_wakes_always_and_takes_along_what_waits(outbox: Outbox[str]) -> None:
    for now in (0.0, 1.0):
        outbox.put("a", can_wait=True)
        outbox.take(now, REST)
    assert not outbox.put("b", can_wait=True)
    assert outbox.put("end", can_wait=False)
    assert outbox.take(2.0, REST) == ["b", "end"]
    assert not outbox.rests
    assert outbox.put("the next one", can_wait=True)  # the beginning of something new does not wait


def test_who_rests_without_end_is_woken_by_the_end_only(outbox: Outbox[str]) -> None:
    assert outbox.put("a", can_wait=True)
    assert outbox.take(0.0, None) == ["a"]
    assert outbox.rests
    assert not outbox.put("b", can_wait=True)
    assert outbox.put("end", can_wait=False)
    assert outbox.take(99.0, None) == ["b", "end"]

"""Ctrl-C, SIGTERM and SIGHUP: raised, kept in a flag, or held until a call into C is over."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from specrun import interrupts
from specrun.interrupts import Ending, InterruptFlag, held
from tests.conftest import ENDING_SIGNALS
from tests.waiting import TIMEOUT_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


@pytest.fixture(autouse=True)
def caught(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The signals are caught as the command does it, and nobody else's handlers are changed."""
    monkeypatch.setattr(interrupts, "_ending", None)
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number in ENDING_SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)
    interrupts.catch_endings()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_a_process_is_raised_once_for_all_that_say_it(number: signal.Signals) -> None:
    assert interrupts.exit_code() == 130
    with pytest.raises(Ending):
        signal.raise_signal(number)
    assert interrupts.is_ending()
    assert interrupts.exit_code() == 128 + number
    signal.raise_signal(signal.SIGHUP)  # a shell says it again, while everything is cleaned up


def test_later_it_is_said_in_earnest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_SECONDS_OF_ONE_END", 0.0)
    for _ in range(2):
        with pytest.raises(Ending):
            signal.raise_signal(signal.SIGTERM)


def test_what_was_ignored_from_the_start_stays_ignored() -> None:
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    interrupts.catch_endings()
    with InterruptFlag() as interrupted, held() as waits:
        for number in ENDING_SIGNALS:
            signal.raise_signal(number)
        assert not interrupted()
        assert not waits()


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_inside_a_flag_the_first_signal_sets_it_and_the_second_is_raised(number: int) -> None:
    with InterruptFlag() as interrupted:
        assert not interrupted()
        signal.raise_signal(number)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert interrupts.is_ending() == (number != signal.SIGINT)


def test_ctrl_c_is_told_while_c_computes() -> None:
    said, heard = threading.Event(), list[bool]()
    reading, writing = os.pipe()

    def press() -> None:
        time.sleep(0.2)  # until the main thread is in C, where Python's handlers wait
        signal.raise_signal(signal.SIGINT)
        heard.append(said.wait(TIMEOUT_S))
        os.write(writing, b"x")

    with InterruptFlag(said.set) as interrupted:
        thread = threading.Thread(target=press)
        thread.start()
        ctypes.CDLL(None).read(reading, ctypes.create_string_buffer(1), 1)  # as long as the other thread wants
        thread.join()
        assert interrupted()
    assert heard == [True]
    assert signal.set_wakeup_fd(-1) == -1, "it was given back"
    with InterruptFlag(said.clear):
        pass
    assert said.is_set(), "nothing is said where nobody pressed it"
    os.close(reading)
    os.close(writing)


def test_a_second_ctrl_c_while_the_flag_is_given_up_leaves_no_handler() -> None:
    before, is_over = signal.getsignal(signal.SIGINT), threading.Event()

    def say() -> None:
        is_over.wait(TIMEOUT_S)

    second = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    flag = InterruptFlag(say).__enter__()
    signal.raise_signal(signal.SIGINT)
    second.start()
    with pytest.raises(KeyboardInterrupt):
        flag.__exit__()
    is_over.set()
    second.join()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_held_signal_is_raised_when_the_block_ends(number: int) -> None:
    done = []

    def call_into_c() -> None:
        with held() as waits:
            signal.raise_signal(number)
            done.append(waits())

    with pytest.raises(KeyboardInterrupt):
        call_into_c()
    assert done == [True]


def test_a_held_signal_sets_the_flag_around_the_block() -> None:
    with InterruptFlag() as interrupted:
        with held():
            signal.raise_signal(signal.SIGTERM)
            assert not interrupted()
        assert interrupted()


def test_at_the_end_nothing_disturbs() -> None:
    interrupts.ignore_all()
    for number in ENDING_SIGNALS:
        signal.raise_signal(number)

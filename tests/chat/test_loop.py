"""What the chat loop keeps when the terminal goes in the middle of an answer."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

import specrun
from specrun import interrupts
from specrun.chat import conversation_file
from specrun.chat.conversation_file import Keeper, LastConversation
from specrun.chat.loop import ChatLoop, Surroundings
from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.interrupts import Ending
from specrun.reading.deltas import Delta
from specrun.sampling import SamplingParameters


def terminal_that_goes(deltas: Iterable[Delta], completion: Completion, shows_thinking: bool) -> None:
    del shows_thinking
    for _ in deltas:
        assert completion.token_ids
        raise OSError(errno.EIO, "Input/output error")


class HangUp(Keeper):
    """The signal comes when the conversation is about to be kept."""

    def keep(self, conversation: LastConversation, takes_back: bool = False) -> None:
        signal.raise_signal(signal.SIGHUP)
        super().keep(conversation, takes_back)


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SIGHUP is caught as the command does it."""
    monkeypatch.setattr(interrupts, "_ending", None)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupts.catch_endings()
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.usefixtures("caught")
def test_an_answer_is_kept_when_the_signal_comes_after_the_terminal_has_gone(script: Path) -> None:
    around = Surroundings(
        partial(next, iter(["sing"])),
        lambda _: terminal_that_goes,
        lambda _: specrun.load(script, speculate="off", threads=1),
        HangUp(),
    )
    with ChatLoop(None, Request([], SamplingParameters()), around) as loop, pytest.raises(Ending):
        loop.run()
    assert conversation_file.last().messages[-1]["role"] == "assistant"
    assert conversation_file.last().messages[-1]["content"]

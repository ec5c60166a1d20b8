"""What becomes of a process of its own that answers, refuses or crashes."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from specrun.errors import CrashError, LlamaError, OutOfMemoryError
from specrun.processes import child_process


def serve(request: str) -> None:
    """In the child: what the test asked for."""
    asked = json.loads(request)["ask"]
    if asked == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if asked == "be killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if asked == "leave":
        os._exit(3)
    if asked == "stammer":
        print("{")
        return
    if asked == "lack":
        child_process.reply(request, lack)
        return
    print(json.dumps({"error": "not today"} if asked == "refuse" else {"said": "yes"}))


def lack(_: dict[str, Any]) -> dict[str, Any]:
    raise OutOfMemoryError("no memory")


def answered(asked: str) -> dict[str, str]:
    return child_process.answer(__name__, {"ask": asked}, "the child", lambda: None, debug=False)


@pytest.mark.slow
def test_an_answer_and_a_refusal() -> None:
    assert answered("answer") == {"said": "yes"}
    with pytest.raises(LlamaError, match="not today") as caught:
        answered("refuse")
    assert type(caught.value) is LlamaError
    with pytest.raises(OutOfMemoryError, match="no memory"):
        answered("lack")


@pytest.mark.slow
def test_crashes_are_told_from_refusals_and_from_a_lack_of_memory() -> None:
    with pytest.raises(CrashError, match=rf"the child ended by signal {signal.SIGSEGV:d}"):
        answered("crash")
    with pytest.raises(OutOfMemoryError, match="the child was killed, as the kernel does where memory runs out"):
        answered("be killed")
    with pytest.raises(CrashError, match="the child ended with code 3"):
        answered("leave")
    with pytest.raises(CrashError, match="the child ended with code 0"):
        answered("stammer")

"""What becomes of a process of its own that answers, refuses or crashes."""

from __future__ import annotations

import json
import os
import signal

import pytest

from specrun.errors import CrashError, LlamaError
from specrun.processes import child_process


def serve(request: str) -> None:
    """In the child: what the test asked for."""
    asked = json.loads(request)["ask"]
    if asked == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if asked == "leave":
        os._exit(3)
    print(json.dumps({"error": "not today"} if asked == "refuse" else {"said": "yes"}))


def answered(asked: str) -> dict[str, str]:
    return child_process.answer(__name__, {"ask": asked}, "the child", lambda: None, debug=False)


def test_an_answer_and_a_refusal() -> None:
    assert answered("answer") == {"said": "yes"}
    with pytest.raises(LlamaError, match="not today") as caught:
        answered("refuse")
    assert not isinstance(caught.value, CrashError)


def test_crashes_are_told_from_refusals() -> None:
    with pytest.raises(CrashError, match=rf"the child ended by signal {signal.SIGSEGV:d}"):
        answered("crash")
    with pytest.raises(CrashError, match="the child ended with code 3"):
        answered("leave")

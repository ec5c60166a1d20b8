"""Calls a function in a child process: work in C that may have to be stopped at any time, or that changes a setting
of the whole process.

The child has a session of its own, so that Ctrl-C on the terminal reaches only specrun. Its stdin is closed when
specrun is gone, whatever ended it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from specrun.errors import CrashError, LlamaError, OutOfMemoryError, SpecrunError

# -I and this process's sys.path keep Python from importing modules of the same names from the current folder.
_CHILD = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "importlib.import_module(sys.argv[2]).serve(sys.argv[3])"
)
# Windows has no sessions; there Ctrl-C on the terminal does not reach a group of its own.
OWN_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
_POLL_SECONDS = 0.1
_STDOUT = 1  # the file descriptor

_owes_answer = False  # whether this process is a child that has not answered yet


def answer(module: str, request: Mapping[str, Any], what: str, wait: Callable[[], None], debug: bool) -> dict[str, Any]:
    """Let `serve` of a module answer a request in a child process. `serve` gets JSON and prints JSON as its last line.

    what: names the process in errors. wait: called ten times a second; it may raise to end the process. debug: whether
    its stderr is shown. Raises OutOfMemoryError if llama.cpp ran out of memory in it or the system killed it,
    CrashError if the process ends otherwise without an answer, and LlamaError with the text of the answer's `error`.
    """
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _CHILD, json.dumps(sys.path), module, json.dumps(request)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if debug else subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
        creationflags=OWN_GROUP,
    ) as process:
        try:
            while True:
                try:
                    code = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    wait()
            assert process.stdout
            lines = process.stdout.read().splitlines()
            error_lines = process.stderr.read().splitlines() if process.stderr else []
        finally:
            process.kill()
    result = _result(lines)
    if result and result.get("lacks_memory"):
        raise OutOfMemoryError(result["error"])
    if hasattr(signal, "SIGKILL") and code == -signal.SIGKILL:
        raise OutOfMemoryError(f"{what} was killed, as the kernel does where memory runs out")
    if code != 0 or result is None:
        raise CrashError(_failure(what, code, error_lines))
    if "error" in result:
        raise LlamaError(result["error"])
    return result


def reply(
    request: str,
    work: Callable[[dict[str, Any]], Mapping[str, Any]],
    clean_up: Callable[[], None] = lambda: None,
    failures: type[Exception] = SpecrunError,
) -> None:
    """In the child: print what `work` makes of the request, or its `error`. clean_up: as for `end_with_parent`."""
    global _owes_answer
    end_with_parent(clean_up)
    _owes_answer = True
    try:
        answer = work(json.loads(request))
    except failures as error:
        answer = _refusal(error)
    _owes_answer = False
    print(json.dumps(answer))


def answer_with(error: SpecrunError) -> None:
    """In a child that owes an answer: print this error as such, because the process ends now. Else do nothing.

    Python's own streams are not used, as another thread may be using them. Raises OSError.
    """
    if _owes_answer:
        os.write(_STDOUT, f"\n{json.dumps(_refusal(error))}\n".encode())


def _refusal(error: Exception) -> dict[str, Any]:
    return {"error": str(error), "lacks_memory": isinstance(error, OutOfMemoryError)}


def _result(lines: list[str]) -> dict[str, Any] | None:
    """The answer in the last line; None if that is none, as where the process crashed while it wrote."""
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError):
        return None


def end_with_parent(clean_up: Callable[[], None]) -> None:
    """In the child: end early, after `clean_up`, when the parent is gone."""

    def watch() -> None:
        os.read(0, 1)
        clean_up()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _failure(what: str, code: int, error_lines: list[str]) -> str:
    said = error_lines[-1].removeprefix("specrun: ").partition(";")[0] if error_lines else ""
    if code < 0:
        return f"{what} ended by signal {-code} ({signal.strsignal(-code)})" + (f": {said}" if said else "")
    return said or f"{what} ended with code {code}"

"""Runs llama.cpp's quantizer in a child process, so that it can be stopped at any time and its output is captured.

The process has its own session, so that Ctrl-C on the terminal reaches only specrun.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specrun.errors import LlamaError
from specrun.hardware.cpu import usable_cores
from specrun.making.candidates import Candidate

# -I and this process's sys.path keep Python from importing modules of the same names from the current folder.
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from specrun.llama import quantizer; quantizer.serve(sys.argv[2])"
)
_POLL_SECONDS = 0.1


def size_of(target: Path, candidate: Candidate, wait: Callable[[], None]) -> int:
    """Bytes of the weights of a candidate, without writing it. Raises LlamaError if the quantizer refuses it."""
    return _run(target, None, candidate, wait)


def write(target: Path, destination: Path, candidate: Candidate, wait: Callable[[], None]) -> None:
    """Write a candidate made from `target`. `wait` is called ten times a second and may raise to stop the quantizer.

    Raises LlamaError if the quantizer refuses the candidate. After an exception an incomplete file may remain.
    """
    _run(target, destination, candidate, wait)


def _run(target: Path, destination: Path | None, candidate: Candidate, wait: Callable[[], None]) -> int:
    debug = logging.getLogger("specrun.llama").isEnabledFor(logging.DEBUG)
    request = {
        "source": str(target),
        "destination": str(destination) if destination else None,
        "file_type": candidate.file_type,
        "dropped": candidate.dropped,
        "n_threads": usable_cores(),
        "debug": debug,
    }
    with _started(json.dumps(request), debug) as process:
        while True:
            try:
                code = process.wait(_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                wait()
        assert process.stdout
        lines = process.stdout.read().splitlines()
        error_lines = process.stderr.read().splitlines() if process.stderr else []
    answer = json.loads(lines[-1]) if code == 0 and lines else {"error": _failure(code, error_lines)}
    if "error" in answer:
        raise LlamaError(answer["error"])
    return int(answer["bytes"])


def _failure(code: int, error_lines: list[str]) -> str:
    """Why a process ended without an answer."""
    if error_lines:
        return error_lines[-1].removeprefix("specrun: ").partition(";")[0]
    return f"the quantizer ended with code {code}"


@contextmanager
def _started(request: str, debug: bool) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-I", "-c", _CHILD, json.dumps(sys.path), request]
    stderr = None if debug else subprocess.PIPE
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()

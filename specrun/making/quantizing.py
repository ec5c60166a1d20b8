"""Runs the quantizer in a process of its own: it can be stopped at any moment, and what it prints disturbs nobody.

The process is a session of its own, so that Ctrl-C on the terminal reaches only us.
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

# -I and the path of this process: what lies in the current folder must not be imported in place of specrun.
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from specrun.llama import quantizer; quantizer.serve(sys.argv[2])"
)
_SECONDS_BETWEEN_LOOKS = 0.1


def size_of(target: Path, candidate: Candidate, wait: Callable[[], None]) -> int:
    """Bytes of the weights that a candidate would have. Raises LlamaError where the quantizer refuses."""
    return _run(target, None, candidate, wait)


def write(target: Path, destination: Path, candidate: Candidate, wait: Callable[[], None]) -> None:
    """Write a candidate made from `target`. `wait` is called ten times a second; what it raises stops the quantizer.

    Raises LlamaError where the quantizer refuses. Then, and if it was stopped, a part of the file may be there.
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
                code = process.wait(_SECONDS_BETWEEN_LOOKS)
                break
            except subprocess.TimeoutExpired:
                wait()
        assert process.stdout
        lines = process.stdout.read().splitlines()
        told = process.stderr.read().splitlines() if process.stderr else []
    answer = json.loads(lines[-1]) if code == 0 and lines else {"error": _last_words(code, told)}
    if "error" in answer:
        raise LlamaError(answer["error"])
    return int(answer["bytes"])


def _last_words(code: int, told: list[str]) -> str:
    """Why a process ended that gave no answer."""
    if told:
        return told[-1].removeprefix("specrun: ").partition(";")[0]
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

"""Runs llama.cpp's quantizer in a child process, so that it can be stopped at any time and its output is captured."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from specrun.hardware.cpu import usable_cores
from specrun.making.candidates import Candidate
from specrun.processes import child_process


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
    return int(child_process.answer("specrun.llama.quantizer", request, "the quantizer", wait, debug)["bytes"])

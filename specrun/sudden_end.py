"""Ending the process at once, from any thread, where C code cannot go on: one line instead of a crash."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STDERR = 2
_CLEAR_LINE_AND_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"

_undo: list[Callable[[], None]] = []


@contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Inside the block a sudden end calls `undo` first: for what would otherwise outlive the process."""
    _undo.append(undo)
    try:
        yield
    finally:
        _undo.remove(undo)


def say(message: str) -> None:
    """Write a line on stderr, without Python's own streams, which another thread may be using; undo what has to be."""
    for undo in reversed(_undo):
        undo()
    prefix = _CLEAR_LINE_AND_SHOW_CURSOR if os.isatty(_STDERR) else b""
    os.write(_STDERR, prefix + f"specrun: {message}\n".encode())


def end(message: str, code: int) -> None:
    """Write a line on stderr and end the process with this exit code."""
    try:
        say(message)
    finally:
        os._exit(code)

"""What is left to do where C code cannot go on and the process ends at once: what was written is kept, the terminal
given back, and one line says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

STDERR = 2
_CLEAR_LINE_AND_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"

_undo: list[Callable[[], None]] = []


@contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Inside the block a sudden end calls `undo` first: for what would otherwise outlive the process, or be lost."""
    _undo.append(undo)
    try:
        yield
    finally:
        _undo.remove(undo)


def say(message: str, descriptor: int = STDERR) -> None:
    """Write a line on stderr, without Python's own streams, which another thread may be using; undo what has to be.

    descriptor: of stderr. Raises OSError.
    """
    for undo in reversed(_undo):
        with suppress(Exception):  # nothing may keep the process from ending
            undo()
    prefix = _CLEAR_LINE_AND_SHOW_CURSOR if os.isatty(descriptor) else b""
    os.write(descriptor, prefix + f"specrun: {message}\n".encode(errors="replace"))

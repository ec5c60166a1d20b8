"""The terminal while an answer is written: keys pressed meanwhile are not shown in the middle of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

if sys.platform == "win32":

    @contextmanager
    def without_echo() -> Iterator[None]:
        """Windows echoes nothing while nobody reads."""
        yield

else:
    import termios

    _LOCAL_FLAGS = 3  # index in what tcgetattr returns

    @contextmanager
    def without_echo() -> Iterator[None]:
        """Neither keys nor the ^C of Ctrl-C are shown inside the block; what was typed waits for the next prompt."""
        if not sys.stdin.isatty():
            yield
            return
        before = termios.tcgetattr(sys.stdin)
        quiet = termios.tcgetattr(sys.stdin)
        quiet[_LOCAL_FLAGS] &= ~termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
        try:
            yield
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

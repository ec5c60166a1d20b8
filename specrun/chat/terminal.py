"""Keeping the terminal from showing typed keys in the middle of an answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from specrun import interrupts

if sys.platform == "win32":

    @contextmanager
    def without_echo() -> Iterator[None]:
        """Windows shows no keys while nothing reads them."""
        yield

else:
    import termios

    _STDIN = 0
    _LOCAL_FLAGS = 3  # index of the local flags in the list that tcgetattr returns

    @contextmanager
    def without_echo() -> Iterator[None]:
        """Neither keys nor the ^C of Ctrl-C are shown inside the block. The next prompt gets what was typed."""
        if not sys.stdin.isatty():
            yield
            return
        before = termios.tcgetattr(sys.stdin)
        quiet = termios.tcgetattr(sys.stdin)
        quiet[_LOCAL_FLAGS] &= ~termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
        try:
            with interrupts.undone(lambda: termios.tcsetattr(_STDIN, termios.TCSANOW, before)):
                yield
        finally:
            # Where the terminal is gone, there is nothing to restore.
            with suppress(termios.error):
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

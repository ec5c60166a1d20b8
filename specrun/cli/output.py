"""Where text goes: the result to stdout, everything else to stderr, colour only on a terminal."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

debug = False

# rich respects NO_COLOR and draws nothing where stderr is not a terminal.
_stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def write(text: str) -> None:
    """A piece of the result, shown at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Something the user should know, dim, on stderr."""
    _stderr.print(Text(text, style="dim"))


def error(text: str) -> None:
    """Why a command failed, on stderr."""
    _stderr.print(Text("specrun: ", style="bold red") + Text(text, style="default"))

"""Where text goes: the result to stdout, everything else to stderr, colour only on a terminal."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

debug = False

# rich respects NO_COLOR and draws nothing where stderr is not a terminal.
stdout = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def write(text: str) -> None:
    """A piece of the result, shown at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(value: dict[str, Any]) -> None:
    """One JSON object on a line of its own."""
    write(json.dumps(value, ensure_ascii=False) + "\n")


def note(text: str) -> None:
    """Something the user should know, dim, on stderr."""
    stderr.print(Text(text, style="dim"))


def error(text: str) -> None:
    """Why a command failed, on stderr."""
    stderr.print(Text("specrun: ", style="bold red") + Text(text, style="default"))

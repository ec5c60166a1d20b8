"""Where text goes: the result to stdout, everything else to stderr, colour only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

debug = False

# rich respects NO_COLOR and draws nothing where stderr is not a terminal.
stdout = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False)
stderr.soft_wrap = not stderr.is_terminal  # lines break at words on a terminal, and nowhere else


def write(text: str) -> None:
    """A piece of the result, shown at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(value: dict[str, Any] | list[dict[str, Any]]) -> None:
    """A JSON value on a line of its own."""
    write(json.dumps(value, ensure_ascii=False) + "\n")


def print_table(table: RenderableType) -> None:
    """A table, or several, on stdout, as wide as it needs to be where no terminal limits it."""
    console = stdout if stdout.is_terminal else Console(width=200)
    console.print(table, soft_wrap=False)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Gives a function that shows what is being done now; on a terminal only."""
    if not stderr.is_terminal:
        yield lambda _: None
        return
    with stderr.status("") as status:
        yield lambda text: status.update(Text(text, style="dim"))


def note(text: str) -> None:
    """Something the user should know, dim, on stderr."""
    stderr.print(Text(text, style="dim"))


def hint(text: str) -> None:
    """What is only of interest to someone who looks on: a note, on a terminal alone."""
    if stderr.is_terminal:
        note(text)


def error(text: str) -> None:
    """Why a command failed, on stderr."""
    stderr.print(Text.assemble(("specrun: ", "bold red"), text))

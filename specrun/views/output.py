"""Prints text: the result to stdout, everything else to stderr, colours only on a terminal."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from specrun.display_text import one_line, visible, without_secrets
from specrun.locations import json_text

if TYPE_CHECKING:
    from specrun.views.fitting_table import FittingTable

_SECONDS_BEFORE_ACTIVITY = 0.5  # what is over sooner needs no line
_FRAMES_PER_SECOND = 8
_ANY_WIDTH = 100_000  # columns; more than any row has

debug = False  # whether --debug was given


class LiteralConsole(Console):
    """A console that shows all text literally, and breaks long lines, at words, only on a terminal.

    Names of models and files may have square brackets or colons, which rich would read as markup and emoji, and control
    characters, which the terminal would obey (specrun.display_text).
    """

    def __init__(self, **options: Any) -> None:
        """options: rich's, as `file` and `width`."""
        super().__init__(highlight=False, markup=False, emoji=False, **options)
        self.soft_wrap = not self.is_terminal  # on a terminal it would cut off what is drawn anew while it grows

    def render_str(self, text: str, **options: Any) -> Text:
        """As in rich, but control characters are escaped before the text is laid out."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As in rich, but only rich's own commands, such as those that move the cursor, reach the terminal."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


# rich respects NO_COLOR and uses no colours where the output is not a terminal.
stdout = LiteralConsole()
stderr = LiteralConsole(stderr=True)


def write(text: str) -> None:
    """Write a piece of the result, without a newline, and flush it. Only a terminal gets it escaped (`visible`)."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_json(value: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Write a JSON value on its own line."""
    write(json_text(value, sys.stdout.encoding or "utf-8") + "\n")


def table(*names: str, right: Sequence[str] = (), optional: Sequence[str] = ()) -> FittingTable:
    """An empty table with these columns; `right` are figures, and `optional` may be left out of a narrow terminal."""
    from specrun.views.fitting_table import FittingTable

    return FittingTable(names, right, optional)


def print_table(renderable: RenderableType) -> None:
    """Print a table, or a group of them, on stdout. Off a terminal every row is one line, however long."""
    if stdout.is_terminal:
        stdout.print(renderable, soft_wrap=False)
        return
    console = LiteralConsole(width=_ANY_WIDTH)
    with console.capture() as lines:
        console.print(renderable, soft_wrap=False)
    write("".join(f"{line.rstrip()}\n" for line in lines.get().splitlines()))


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yields a function that shows the current activity on stderr; it does nothing if stderr is not a terminal."""
    latest = deque([""], maxlen=1)
    with activity(lambda: latest[0]):
        yield latest.append


@contextmanager
def activity(text: Callable[[], str]) -> Iterator[None]:
    """Show on stderr, if it is a terminal, what is being done inside the block, as soon as that takes half a second.

    text: says it; called several times a second from another thread. Nothing else may be drawn meanwhile.
    """
    if not stderr.is_terminal:
        yield
        return
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots")

    def drawn() -> Spinner:
        spinner.update(text=Text(one_line(text()), style="dim"))
        return spinner

    live = Live(get_renderable=drawn, console=stderr, transient=True, refresh_per_second=_FRAMES_PER_SECOND)
    start = Timer(_SECONDS_BEFORE_ACTIVITY, live.start)
    start.start()
    try:
        yield
    finally:
        start.cancel()
        start.join()
        live.stop()


def note(text: str) -> None:
    """Print a message for the user on stderr, dimmed on a terminal."""
    stderr.print(Text(visible(without_secrets(text)), style="dim"))


def hint(text: str) -> None:
    """Print a note only if stderr is a terminal, because it is of no use in a log."""
    if stderr.is_terminal:
        note(text)


def error(text: str) -> None:
    """Print on stderr, in one line, why a command failed."""
    stderr.print(Text.assemble(("specrun: ", "bold red"), one_line(without_secrets(text))))


def traceback(error: BaseException) -> None:
    """Print on stderr where an error comes from (`--debug`)."""
    from traceback import format_exception

    print(visible(without_secrets("".join(format_exception(error)))), end="", file=sys.stderr)

"""Prints text and tables: the result to stdout, everything else to stderr, colours only on a terminal."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread, Timer
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from specrun.display_text import one_line, visible, without_secrets
from specrun.locations import json_text

_SECONDS_BEFORE_ACTIVITY = 0.5  # what is over sooner needs no line
_FRAMES_PER_SECOND = 8
_SECONDS_BEFORE_A_LINE = 20.0  # off a terminal; each further line comes after twice the time
_MOST_BETWEEN_LINES = 600.0  # seconds
_ANY_WIDTH = 100_000  # columns; more than any row has
_GAP = 2  # columns of the terminal between two columns of a table
_READABLE = 24  # columns that a cell of several words gets at least: a narrower one reads like a list of words

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
    stdout.file.write(visible(text) if stdout.file.isatty() else text)
    stdout.file.flush()


def write_json(value: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Write a JSON value on its own line."""
    write(json_text(value, sys.stdout.encoding or "utf-8") + "\n")


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
    """Yields a function that shows the current activity on stderr, as `activity` does."""
    latest = deque([""], maxlen=1)
    with activity(lambda: latest[0]):
        yield latest.append


@contextmanager
def activity(text: Callable[[], str]) -> Iterator[None]:
    """Show on stderr what is being done inside the block, as soon as that takes half a second. Off a terminal a line
    says it now and then.

    text: says it; called several times a second from another thread. Nothing else may be drawn meanwhile.
    """
    if not stderr.is_terminal:
        with _lines(text):
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


@contextmanager
def _lines(text: Callable[[], str]) -> Iterator[None]:
    """Say in lines what is being done inside the block."""
    over = Event()

    def say() -> None:
        seconds = _SECONDS_BEFORE_A_LINE
        while not over.wait(seconds):
            seconds = min(2 * seconds, _MOST_BETWEEN_LINES)
            if now := text():
                _line(now)

    thread = Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _line(text: str) -> None:
    """Write a line on stderr from another thread, off a terminal."""
    # rich would answer a broken pipe by giving up stdout, too; a closed file raises ValueError
    with suppress(OSError, ValueError):
        stderr.file.write(f"{one_line(without_secrets(text))}\n")  # at once, beside what others write
        stderr.file.flush()


def note(text: str) -> None:
    """Print a message for the user on stderr, dimmed on a terminal."""
    stderr.print(Text(visible(without_secrets(text)), style="dim"))


def stopping() -> None:
    """Say that Ctrl-C was heard, in a thread of its own (`InterruptFlag`)."""
    (note if stderr.is_terminal else _line)("stopping as soon as the pass that may be running is over")


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


class FittingTable:
    """A table of text and figures.

    names: of the columns; a table whose names are all empty has no head. right: the columns of figures, which stand
    flush right and are never wrapped. optional: columns that can be left out, the first to go first.

    Where there is room every cell stands on one line. In a narrower terminal cells of text wrap at words, the widest
    first, but not below `_READABLE` columns. If that is not enough, `optional` columns are left out, as few as
    possible, and a line below says which. If not even that is enough, every row becomes a block: its first cell, and
    below it a line or more for each other cell, with its column's name in front.
    """

    def __init__(self, *names: str, right: Sequence[str] = (), optional: Sequence[str] = ()) -> None:
        self._names = list(names)
        self._right = set(right)
        self._optional = list(optional)
        self._rows: list[tuple[list[Text], StyleType | None]] = []
        self._headings: dict[int, list[Text]] = {}  # lines above the row of this number

    def add_row(self, *cells: str | Text, style: StyleType | None = None) -> None:
        """Add a row with a cell for each column."""
        self._rows.append(([_text(cell) for cell in cells], style))

    def add_heading(self, text: str | Text) -> None:
        """Add a line, wrapped at words if it is long, above the rows that are added from now on."""
        self._headings.setdefault(len(self._rows), []).append(_text(text, "bold"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(range(len(self._names)))
        left_out = list[str]()
        for name in [None, *self._optional]:
            if name is not None:
                shown.remove(self._names.index(name))
                left_out.append(name)
            if widths := self._widths(shown, options.max_width):
                yield from self._in_columns(shown, widths)
                if left_out:
                    yield Text(f"left out in this width: {', '.join(left_out)}", style="dim")
                return
        yield from self._in_blocks()

    def _sizes(self) -> list[tuple[int, int, int]]:
        """What each column takes of the terminal: with its name on one line, with each cell on one line, and the least
        in which no word of a cell or of the name is broken.
        """
        sizes = []
        for i, name in enumerate(self._names):
            cells, word = [cells[i] for cells, _ in self._rows], _longest_word(Text(name))
            natural = least = max([word, *map(_width, cells)])
            if name not in self._right:
                least = max([word, *(max(_longest_word(cell), min(_width(cell), _READABLE)) for cell in cells)])
            sizes.append((max(_width(Text(name)), natural), natural, least))
        return sizes

    def _widths(self, shown: Sequence[int], width: int) -> list[int] | None:
        """The widths of the columns `shown`, in this width of all; None if they do not fit."""
        room, sizes = width - _GAP * (len(shown) - 1), self._sizes()
        named, natural, least = (list(column) for column in zip(*(sizes[i] for i in shown), strict=True))
        if sum(named) <= room:
            return named
        if sum(least) > room:
            return None
        # Names of columns wrap before cells do, and cells by one limit for all.
        limits = range(max(natural), 0, -1)
        tried = ([max(low, min(high, limit)) for low, high in zip(least, natural, strict=True)] for limit in limits)
        return next((widths for widths in tried if sum(widths) <= room), least)

    def _in_columns(self, shown: Sequence[int], widths: Sequence[int]) -> Iterable[RenderableType]:
        def grid(rows: Iterable[tuple[list[Text], StyleType | None]]) -> Table:
            table = Table.grid(padding=(0, _GAP, 0, 0))
            for i, width in zip(shown, widths, strict=True):
                is_figure = self._names[i] in self._right
                table.add_column(justify="right" if is_figure else "left", width=width, overflow="fold")
            for cells, style in rows:
                table.add_row(*(cells[i] for i in shown), style=style)
            return table

        if any(self._names):
            yield grid([([Text(name) for name in self._names], "bold")])
        begins = sorted({0, *self._headings})
        for begin, end in zip(begins, [*begins[1:], len(self._rows)], strict=True):
            if begin in self._headings:
                yield Text()
                yield from self._headings[begin]
            yield grid(self._rows[begin:end])

    def _in_blocks(self) -> Iterable[RenderableType]:
        for i, (cells, style) in enumerate(self._rows):
            if i:
                yield Text()
            yield from self._headings.get(i, ())
            yield Text(cells[0].plain, style=style or "bold", overflow="fold")
            named = zip(self._names[1:], cells[1:], strict=True)
            yield facts([(f"  {name}", cell) for name, cell in named if cell.plain])


def facts(lines: Iterable[tuple[str, str | Text]]) -> Table:
    """Names with what there is to say about each, one below the other; text wraps beside its name, at words."""
    table = Table.grid(padding=(0, _GAP, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(_text(name), _text(value))
    return table


def _text(text: str | Text, style: str = "") -> Text:
    return text if isinstance(text, Text) else Text(text, style=style)


def _width(text: Text) -> int:
    return max(cell_len(line) for line in text.plain.split("\n"))


def _longest_word(text: Text) -> int:
    return max(map(cell_len, text.plain.split()), default=0)

"""Showing an answer while it is written: as Markdown on a terminal, or piece by piece."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment, SegmentLines
from rich.text import Text

from specrun.display_text import visible
from specrun.engine.completion import Completion
from specrun.views.answer_report import status
from specrun.views.markdown_text import MarkdownText

_FENCE = re.compile(r"\s*(```+|~~~+)")
_FRAMES_PER_SECOND = 8
_MOST_OF_THE_TIME = 0.05  # that drawing may take
_MOST_RENDERED = 8000  # characters of an unfinished block; only the end of a longer block is shown until it is complete
_BELOW = 2  # lines of the screen that are kept for the status


AnswerView = Callable[[Iterable[str], Completion], None]  # shows the pieces of an answer as they come


def show_plain(console: Console, pieces: Iterable[str], completion: Completion) -> None:
    """Write pieces as they are, and an empty line behind the answer. A terminal gets them escaped (`visible`)."""

    def write(text: str) -> None:
        console.file.write(visible(text) if console.is_terminal else text)
        console.file.flush()

    for piece in pieces:
        write(piece)
    write("\n" if completion.text.endswith("\n") else "\n\n")


def show_live(console: Console, markdown: bool, pieces: Iterable[str], completion: Completion) -> None:
    """Print finished parts of an answer on a terminal, and draw below them the unfinished part and how fast it goes.

    markdown: whether the answer is Markdown. Else every line is shown as it is.
    """
    answer = _Answer(console, markdown, completion)
    try:
        with _drawn_often(answer, console) as drawing:
            for piece in pieces:
                answer.pending += visible(piece)
                # A print takes milliseconds, in which the model could write.
                if time.perf_counter() > answer.printed_at + 1 / _FRAMES_PER_SECOND:
                    with drawing:
                        answer.print_finished()
    finally:
        answer.print_pending(len(answer.pending))
        console.print()


@contextmanager
def _drawn_often(answer: _Answer, console: Console) -> Iterator[Lock]:
    """Draw the answer's unfinished part below what is printed, several times a second, inside the block.

    Yields the lock that a print must hold. rich's own thread can draw between a print's decision how many lines are to
    be drawn over, and the print; then lines are lost, or stay where they do not belong.
    """
    drawing, is_over = Lock(), Event()

    def draw_often() -> None:
        # Where the terminal has gone, the next print says so.
        with suppress(OSError):
            while not is_over.wait(1 / _FRAMES_PER_SECOND):
                with drawing:
                    live.refresh()

    thread = Thread(target=draw_often, daemon=True)
    with Live(answer, console=console, auto_refresh=False, transient=True) as live:
        thread.start()
        try:
            yield drawing
        finally:
            is_over.set()
            thread.join()


class _Answer:
    """The part of an answer that is not finished yet, with a line about the whole."""

    def __init__(self, console: Console, markdown: bool, completion: Completion) -> None:
        self.pending = ""
        self.printed_at = 0.0  # a moment of time.perf_counter(); 0 before the first print
        self._console = console
        self._markdown = markdown
        self._completion = completion
        self._started = time.perf_counter()
        self._lines: list[list[Segment]] = []
        self._next_drawing = 0.0

    def print_finished(self) -> None:
        """Print what is finished, if anything is."""
        self.print_pending(finished_blocks(self.pending) if self._markdown else self.pending.rfind("\n") + 1)

    def print_pending(self, end: int) -> None:
        """Print the pending text up to `end`."""
        text, self.pending = self.pending[:end], self.pending[end:]
        if not text:
            return
        self._next_drawing = 0.0  # else it would be drawn once more
        if not self._markdown:
            self._console.print(Text(text.removesuffix("\n")), soft_wrap=True)
        else:
            if self.printed_at:  # blocks of Markdown have an empty line between them
                self._console.print()
            lines = _rendered(self._console, self._console.options, text)
            self._console.print(SegmentLines(lines, new_lines=True), end="")
        self.printed_at = time.perf_counter()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        started = time.perf_counter()
        if started > self._next_drawing:
            self._lines = self._drawn(console, options)
            # Highlighted code takes tens of milliseconds, in which the model could write.
            self._next_drawing = started + (time.perf_counter() - started) / _MOST_OF_THE_TIME
        for line in self._lines:
            yield from line
            yield Segment.line()
        yield Text(status(self._completion, self._started), style="dim", no_wrap=True, overflow="ellipsis")

    def _drawn(self, console: Console, options: ConsoleOptions) -> list[list[Segment]]:
        """The last lines of the unfinished part, as many as fit above the status."""
        pending = self.pending
        text = pending[-_MOST_RENDERED:]
        if not text.strip():
            return []
        if self._markdown and text == pending:
            lines = _rendered(console, options, text)
        else:
            lines = console.render_lines(Text(text), options, pad=False)
        return lines[-max(options.size.height - _BELOW, 1) :]


def finished_blocks(text: str) -> int:
    """Length of the beginning of a Markdown text that consists of whole blocks, whatever follows.

    A block ends with an empty line, or with the end of a fenced block, before a line that is not indented. Without such
    a line the block may go on: an indented line would belong to the same list.
    """
    fence, end, position = "", 0, 0
    candidate: int | None = None
    for line in text.splitlines(keepends=True):
        is_blank = not line.strip()
        if candidate is not None and not is_blank:
            end = end if line[0].isspace() else candidate
            candidate = None
        position += len(line)
        found = _FENCE.match(line)
        if fence:
            if line.endswith("\n") and line.strip() == fence[0] * max(len(line.strip()), len(fence)):
                fence, candidate = "", position
        elif found:
            fence = found[1]
        elif is_blank and line.endswith("\n"):
            candidate = position
    return end


def _rendered(console: Console, options: ConsoleOptions, text: str) -> list[list[Segment]]:
    """The lines of a Markdown text, without empty ones before and behind it."""
    lines = console.render_lines(MarkdownText(text.strip("\n") + "\n"), options, pad=False)
    # Letters can be seen, and the background of code.
    seen = [any(s.text.strip() or (s.style and s.style.bgcolor) for s in line) for line in lines]
    return lines[seen.index(True) : len(seen) - seen[::-1].index(True)] if any(seen) else []

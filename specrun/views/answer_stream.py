"""Showing an answer while it is written: piece by piece, or as Markdown on a terminal."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment, SegmentLines
from rich.text import Text

from specrun.decoding.completion import Completion
from specrun.display_text import counted, visible
from specrun.reading.deltas import Delta
from specrun.views import output
from specrun.views.answer_report import status

_FENCE = re.compile(r"\s*(```+|~~~+)")
_FRAMES_PER_SECOND = 8
_MOST_OF_THE_TIME = 0.05  # that drawing may take
_MOST_RENDERED = 8000  # characters of an unfinished block; only the end of a longer block is shown until it is complete
_BELOW = 2  # lines of the screen that are kept for the status

# Shows what is added to an answer as it comes. The last argument: whether what the model thinks is shown.
AnswerView: TypeAlias = Callable[[Iterable[Delta], Completion, bool], None]
# What draws a text in Markdown, as `MarkdownText`; None where every line is shown as it is.
DrawsMarkdown: TypeAlias = Callable[[str], RenderableType] | None


class PlainAnswer:
    """Writes an answer piece by piece on stdout, and what the model thinks before on stderr, dimmed on a terminal.

    shows_thinking: whether that is written.
    """

    def __init__(self, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._is_thinking = False
        self._last = ""  # what was written of the answer last

    def shows(self, delta: Delta) -> bool:
        """Whether anything of an addition is written."""
        return bool(delta.content or (delta.reasoning and self._shows_thinking))

    def add(self, delta: Delta) -> None:
        """Write an addition, as far as it is shown."""
        if delta.reasoning and self._shows_thinking:
            self._is_thinking = True
            output.stderr.print(Text(visible(delta.reasoning), style="dim"), end="", soft_wrap=True)
        if delta.content:
            self._end_thinking()
            self._write(delta.content)

    def end_line(self) -> None:
        """End the line that is not ended, if there is one."""
        self._end_thinking()
        if self._last and not self._last.endswith("\n"):
            self._write("\n")

    def _end_thinking(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            output.stderr.print("\n")

    def _write(self, text: str) -> None:
        self._last = text
        output.write(text)


def show_plain(deltas: Iterable[Delta], completion: Completion, shows_thinking: bool) -> None:
    """Write an answer in a chat as it comes, and an empty line after it."""
    del completion  # whose speed is not shown meanwhile
    answer = PlainAnswer(shows_thinking)
    for delta in deltas:
        answer.add(delta)
    answer.end_line()
    output.write("\n")


def show_live(
    console: Console, markdown: DrawsMarkdown, deltas: Iterable[Delta], completion: Completion, shows_thinking: bool
) -> None:
    """Print finished parts of an answer on a terminal, and draw below them the unfinished part and how fast it goes.

    markdown: what draws the answer, if it is Markdown. shows_thinking: whether what the model thinks is drawn while it
    does. A line that says how long it took stays.
    """
    answer = _Answer(console, markdown, completion, shows_thinking)
    try:
        with _drawn_often(answer, console) as drawing:
            for delta in deltas:
                answer.think(visible(delta.reasoning))
                if delta.content:
                    with drawing:
                        answer.end_thinking()
                    answer.pending += visible(delta.content)
                # A print takes milliseconds, in which the model could write.
                if time.perf_counter() > answer.printed_at + 1 / _FRAMES_PER_SECOND:
                    with drawing:
                        answer.print_finished()
    finally:
        answer.end_thinking()
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

    def __init__(self, console: Console, markdown: DrawsMarkdown, completion: Completion, shows_thinking: bool) -> None:
        self.pending = ""
        self.printed_at = 0.0  # a moment of time.perf_counter(); 0 before the first print
        self._console = console
        self._markdown = markdown
        self._completion = completion
        self._shows_thinking = shows_thinking
        self._thought: str | None = None  # what the model thinks now; None where it does not
        self._n_before = 0  # tokens that were written before it began to think
        self._started = self._began_thinking = time.perf_counter()
        self._lines: list[list[Segment]] = []
        self._next_drawing = 0.0

    def think(self, text: str) -> None:
        """Take in more of what the model thinks before its answer."""
        if not text:
            return
        if self._thought is None:
            self._thought, self._began_thinking = "", time.perf_counter()
            self._n_before = self._completion.statistics.completion_tokens
        self._thought += text

    def end_thinking(self) -> None:
        """Print a line in place of what the model thought, if it did."""
        if self._thought is not None:
            self._thought, self._next_drawing = None, 0.0
            seconds = time.perf_counter() - self._began_thinking
            n_tokens = self._completion.statistics.completion_tokens - self._n_before
            took = f"{seconds:.{0 if seconds >= 10 else 1}f} s"
            self._console.print(Text(f"thought for {took}, {counted(n_tokens, 'token')}\n", "dim"))

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
            lines = _rendered(self._markdown, self._console, self._console.options, text)
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
        doing = "" if self._thought is None else "thinking, "
        about = f"{doing}{status(self._completion, self._started)}"
        yield Text(about, style="dim", no_wrap=True, overflow="ellipsis")

    def _drawn(self, console: Console, options: ConsoleOptions) -> list[list[Segment]]:
        """The last lines of the unfinished part, or of what the model thinks, as many as fit above the status."""
        thought, pending = self._thought, self.pending
        if thought is not None:
            pending = thought if self._shows_thinking else ""
        text = pending[-_MOST_RENDERED:]
        if not text.strip():
            return []
        if thought is None and self._markdown and text == pending:
            lines = _rendered(self._markdown, console, options, text)
        else:
            lines = console.render_lines(Text(text, "" if thought is None else "dim"), options, pad=False)
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


def _rendered(
    markdown: Callable[[str], RenderableType], console: Console, options: ConsoleOptions, text: str
) -> list[list[Segment]]:
    """The lines of a Markdown text, without empty ones before and after it."""
    lines = console.render_lines(markdown(text.strip("\n") + "\n"), options, pad=False)
    # Letters can be seen, and the background of code.
    seen = [any(s.text.strip() or (s.style and s.style.bgcolor) for s in line) for line in lines]
    return lines[seen.index(True) : len(seen) - seen[::-1].index(True)] if any(seen) else []

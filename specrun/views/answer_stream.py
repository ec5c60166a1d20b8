"""Showing an answer while it is written: as Markdown on a terminal, or piece by piece."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Heading, Markdown, MarkdownElement, Paragraph
from rich.segment import Segment
from rich.text import Text

from specrun.engine.completion import Completion
from specrun.views.answer_report import status

_FENCE = re.compile(r"\s*(```+|~~~+)")
_FRAMES_PER_SECOND = 8
_MOST_RENDERED = 8000  # characters of an unfinished block; of a longer one only the end is shown until it is complete
_BELOW = 2  # lines of the screen that are kept for the status


class AnswerView(Protocol):
    """Shows one answer after the other."""

    def show(self, pieces: Iterable[str], completion: Completion) -> None:
        """Show the pieces as they come. `completion` is what they come from; its statistics may be shown as well."""
        ...


class PlainAnswers:
    """Writes pieces as they are, with an empty line behind each answer."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, pieces: Iterable[str], completion: Completion) -> None:
        for piece in pieces:
            self._write(piece)
        self._write("\n" if completion.text.endswith("\n") else "\n\n")

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()


class LiveAnswers:
    """Writes finished parts of an answer once and for all, and draws below them the part at hand and how fast it goes.

    console: a terminal.
    markdown: whether answers are Markdown. Else every line is shown as it is.
    """

    def __init__(self, console: Console, markdown: bool) -> None:
        self._console = console
        self._markdown = markdown

    def show(self, pieces: Iterable[str], completion: Completion) -> None:
        answer = _Answer(completion, self._markdown)
        try:
            with Live(answer, console=self._console, refresh_per_second=_FRAMES_PER_SECOND, transient=True) as live:
                for piece in pieces:
                    if finished := answer.add(piece):
                        self._print(finished, live.console.print)
        finally:
            if answer.pending:
                self._print(answer.pending, self._console.print)
            self._console.print()

    def _print(self, text: str, write: Callable[..., None]) -> None:
        if self._markdown:
            write(_as_markdown(text), soft_wrap=False)
        else:
            write(Text(text.removesuffix("\n")), soft_wrap=True)


class _Answer:
    """The part of an answer that is not finished yet, with a line about the whole."""

    def __init__(self, completion: Completion, markdown: bool) -> None:
        self.pending = ""
        self._completion = completion
        self._markdown = markdown
        self._started = time.perf_counter()

    def add(self, piece: str) -> str:
        """Take in a piece. Returns what is finished now and not shown any more."""
        self.pending += piece
        end = finished_blocks(self.pending) if self._markdown else self.pending.rfind("\n") + 1
        finished, self.pending = self.pending[:end], self.pending[end:]
        return finished

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.pending
        if text.strip():
            tail = text[-_MOST_RENDERED:]
            shown = _as_markdown(tail) if self._markdown and tail == text else Text(tail)
            lines = console.render_lines(shown, options, pad=False)
            for line in lines[-max(options.size.height - _BELOW, 1) :]:
                yield from line
                yield Segment.line()
        yield Text(status(self._completion, self._started), style="dim", no_wrap=True, overflow="ellipsis")


def finished_blocks(text: str) -> int:
    """Length of the beginning of a Markdown text that consists of whole blocks, whatever follows.

    A block ends with an empty line, or with the end of a fenced block, before a line that is not indented. Such a line
    has to be there: an indented one would belong to the same list.
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
            if found and found[1].startswith(fence) and line.endswith("\n"):
                fence, candidate = "", position
        elif found:
            fence = found[1]
        elif is_blank and line.endswith("\n"):
            candidate = position
    return end


class _LeftHeading(Heading):
    """A heading at the left edge, as in a text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold")
        yield self.text


class _Paragraph(Paragraph):
    """A paragraph whose lines end with their last word, so that no spaces are copied with it."""

    @classmethod
    def create(cls, markdown: Markdown, token: Any) -> _Paragraph:
        del markdown, token
        return cls(justify="default")


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "paragraph_open": _Paragraph,
    }


def _as_markdown(text: str) -> RenderableType:
    return _Markdown(text.strip("\n") + "\n", code_theme="monokai", hyperlinks=False)

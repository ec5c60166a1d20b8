"""Answers as they come: the answer on stdout, and what the model thinks before it on stderr."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from specrun.display_text import visible
from specrun.reading.deltas import Delta

if TYPE_CHECKING:
    from specrun.engine.completion import Completion


class PlainAnswer:
    """Writes an answer piece by piece. In a pipe it is not escaped (`visible`).

    console, notes: stdout and stderr. shows_thinking: whether reasoning is written to `notes`, dimmed on a terminal.
    """

    def __init__(self, console: Console, notes: Console, shows_thinking: bool) -> None:
        self._console, self._notes, self._shows_thinking = console, notes, shows_thinking
        self._is_thinking = False
        self._last = ""  # what was written of the answer last

    def shows(self, delta: Delta) -> bool:
        """Whether anything of an addition is written."""
        return bool(delta.content or (delta.reasoning and self._shows_thinking))

    def add(self, delta: Delta) -> None:
        """Write an addition, as far as it is shown."""
        if delta.reasoning and self._shows_thinking:
            self._is_thinking = True
            self._notes.print(Text(visible(delta.reasoning), style="dim"), end="", soft_wrap=True)
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
            self._notes.print("\n")

    def _write(self, text: str) -> None:
        self._last = text
        self._console.file.write(visible(text) if self._console.is_terminal else text)
        self._console.file.flush()


def show_plain(
    console: Console, notes: Console, deltas: Iterable[Delta], completion: Completion, shows_thinking: bool
) -> None:
    """Write an answer in a chat as it comes, and an empty line after it."""
    del completion  # whose speed is not shown meanwhile
    answer = PlainAnswer(console, notes, shows_thinking)
    for delta in deltas:
        answer.add(delta)
    answer.end_line()
    console.file.write("\n")
    console.file.flush()

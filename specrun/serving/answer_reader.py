"""Reads an answer as it is written: which of its text is what. Every kind of endpoint sends what comes out here."""

from __future__ import annotations

from typing import Literal

from specrun.engine.statistics import FinishReason
from specrun.serving.reading.deltas import Delta, PlainReader, Reader

FinishName = Literal["stop", "length", "tool_calls"]


class AnswerReader:
    """Reads one answer. Pieces go in with `push`, and what they add comes out; `finish` gives what was held back.

    reader: knows how the model marks the parts of an answer. Without one, all text is the answer.
    """

    def __init__(self, reader: Reader | None = None) -> None:
        self._reader = reader or PlainReader()
        self._calls = False

    def push(self, text: str) -> list[Delta]:
        """What `text`, the next piece of the answer, adds."""
        return self._seen(self._reader.push(text)) if text else []

    def finish(self) -> list[Delta]:
        """What is added once it is known that nothing follows."""
        return self._seen(self._reader.finish())

    def finish_name(self, reason: FinishReason) -> FinishName:
        """OpenAI's name for why the answer ended. An answer that was interrupted is cut short, as a long one is."""
        if reason != "stop":
            return "length"
        return "tool_calls" if self._calls else "stop"

    def _seen(self, deltas: list[Delta]) -> list[Delta]:
        self._calls = self._calls or any(delta.call for delta in deltas)
        return deltas

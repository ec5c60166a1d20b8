"""Reads an answer as it is written: which of its text is what. Every kind of endpoint sends what comes out here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specrun.engine.statistics import FinishReason

FinishName = Literal["stop", "length"]


@dataclass(frozen=True)
class Delta:
    """What a piece of text adds to the answer. content: to its text."""

    content: str = ""


class AnswerReader:
    """Reads one answer. Pieces go in with `push`, and what they add comes out; `finish` gives what was held back."""

    def __init__(self) -> None:
        self.content = ""  # all of it so far

    def push(self, text: str) -> list[Delta]:
        """What `text`, the next piece of the answer, adds."""
        if not text:
            return []
        self.content += text
        return [Delta(content=text)]

    def finish(self) -> list[Delta]:
        """What is added once it is known that nothing follows."""
        return []

    def finish_name(self, reason: FinishReason) -> FinishName:
        """OpenAI's name for why the answer ended. An answer that was interrupted is cut short, as a long one is."""
        return "stop" if reason == "stop" else "length"

"""What readers give out: additions to the answer, to its reasoning, and to its calls of tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class CallDelta:
    """An addition to a call of a tool.

    index: which call of the answer, from 0. arguments: more of its JSON text.
    id, name: of a call that begins; None in every later addition to it.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Delta:
    """An addition to the text of the answer, to the reasoning before it, or to a call."""

    content: str = ""
    reasoning: str = ""
    call: CallDelta | None = None


class Reader(Protocol):
    """Reads one answer."""

    def push(self, text: str) -> list[Delta]:
        """What `text`, the next piece of the answer, adds."""

    def finish(self) -> list[Delta]:
        """What is added once it is known that nothing follows."""


class PlainReader:
    """All text is the answer."""

    def push(self, text: str) -> list[Delta]:
        return content(text)

    def finish(self) -> list[Delta]:
        return []


def content(text: str) -> list[Delta]:
    return [Delta(content=text)] if text else []


def reasoning(text: str) -> list[Delta]:
    return [Delta(reasoning=text)] if text else []

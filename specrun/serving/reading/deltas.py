"""What a reader tells: additions to the answer, to its reasoning, and to its calls of tools."""

from __future__ import annotations

import secrets
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
    """An addition to one of these: the text of the answer, the reasoning before it, a call."""

    content: str = ""
    reasoning: str = ""
    call: CallDelta | None = None


class Reader(Protocol):
    """Reads one answer."""

    def push(self, text: str) -> list[Delta]:
        """What `text`, the next piece of the answer, adds."""
        ...

    def finish(self) -> list[Delta]:
        """What is added once it is known that nothing follows."""
        ...


class PlainReader:
    """All text is the answer."""

    def push(self, text: str) -> list[Delta]:
        """The text."""
        return content(text)

    def finish(self) -> list[Delta]:
        """Nothing is held back."""
        return []


def content(text: str) -> list[Delta]:
    """The addition of `text` to the answer, if there is any."""
    return [Delta(content=text)] if text else []


def reasoning(text: str) -> list[Delta]:
    """The addition of `text` to the reasoning, if there is any."""
    return [Delta(reasoning=text)] if text else []


class Calls:
    """Numbers the calls of an answer."""

    def __init__(self) -> None:
        self._n = 0

    def begin(self, name: str) -> Delta:
        """A call begins."""
        self._n += 1
        return Delta(call=CallDelta(self._n - 1, id=f"call_{secrets.token_hex(12)}", name=name))

    def more(self, arguments: str) -> list[Delta]:
        """The latest call has more arguments."""
        return [Delta(call=CallDelta(self._n - 1, arguments))] if arguments else []

    def __len__(self) -> int:
        return self._n

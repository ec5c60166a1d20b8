"""What readers give out: additions to the answer, to its reasoning, and to its calls of tools."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Protocol

from specrun.serving.reading.json_call import JsonCall
from specrun.serving.reading.xml_call import XmlCall

Call = JsonCall | XmlCall


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
        ...

    def finish(self) -> list[Delta]:
        """What is added once it is known that nothing follows."""
        ...


class PlainReader:
    """All text is the answer."""

    def push(self, text: str) -> list[Delta]:
        return content(text)

    def finish(self) -> list[Delta]:
        return []


def content(text: str) -> list[Delta]:
    """The addition of `text` to the answer, if there is any."""
    return [Delta(content=text)] if text else []


def reasoning(text: str) -> list[Delta]:
    """The addition of `text` to the reasoning, if there is any."""
    return [Delta(reasoning=text)] if text else []


class Calls:
    """The calls of an answer, which it numbers."""

    def __init__(self) -> None:
        self._n = 0
        self._latest: Call | None = None

    def read(self, call: Call) -> list[Delta]:
        """What was read of a call since the last time; nothing before its name is known."""
        if call.name is None:
            return []
        begun = [] if self.has_begun(call) else [self.begin(call.name)]
        self._latest = call
        return begun + self.more(call.arguments())

    def has_begun(self, call: Call) -> bool:
        """Whether the beginning of a call was told."""
        return call is self._latest

    def begin(self, name: str) -> Delta:
        """A call begins."""
        self._n += 1
        return Delta(call=CallDelta(self._n - 1, id=f"call_{secrets.token_hex(12)}", name=name))

    def more(self, arguments: str) -> list[Delta]:
        """The latest call has more arguments."""
        return [Delta(call=CallDelta(self._n - 1, arguments))] if arguments else []

    def __len__(self) -> int:
        return self._n

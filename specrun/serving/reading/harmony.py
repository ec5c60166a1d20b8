"""The channels of gpt-oss ("harmony"): analysis, final, and commentary, which has the calls of tools.

    <|channel|>analysis<|message|>I need the weather.<|end|><|start|>assistant
    <|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>

The markers are control tokens, whose text must be shown to the reader.
"""

from __future__ import annotations

import re

from specrun.engine.text_stream import undecided
from specrun.serving.reading.calls import Calls
from specrun.serving.reading.deltas import Delta, content, reasoning

CHANNEL, MESSAGE, START, END, CONSTRAIN = "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"
_MARKERS = (CHANNEL, START, END, "<|call|>", "<|return|>")
_HEADERS = (*_MARKERS, " to=")  # what a header begins with
_CALLED = re.compile(r"to=functions\.([^\s<]+)")


class HarmonyReader:
    """Reads an answer in channels. A text without channels is the answer itself.

    header: the beginning of the first message's header, where the prompt ends with it.
    """

    def __init__(self, header: str = "") -> None:
        self._calls = Calls()
        self._held = header
        self._in_header = True
        self._kind = "content"

    def push(self, text: str) -> list[Delta]:
        self._held += text
        deltas: list[Delta] = []
        while self._read_header(deltas) if self._in_header else self._read_body(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        # A header that is not complete adds nothing.
        return [] if self._in_header else self._told(self._held)

    # Both methods read some of the held text, and return whether there may be more to read.

    def _read_header(self, deltas: list[Delta]) -> bool:
        header, marker, rest = self._held.partition(MESSAGE)
        if not marker and (self._held.startswith(_HEADERS) or any(begun.startswith(self._held) for begun in _HEADERS)):
            return False
        self._in_header = False
        if not marker:
            self._kind = "content"
            return True
        self._held = rest
        called = _CALLED.search(header)
        if called:
            deltas.append(self._calls.begin(called[1]))
        is_analysis = header.partition(CHANNEL)[2].lstrip().startswith("analysis")
        self._kind = "call" if called else "reasoning" if is_analysis else "content"
        return True

    def _read_body(self, deltas: list[Delta]) -> bool:
        at = min((at for at in map(self._held.find, _MARKERS) if at >= 0), default=None)
        if at is not None:
            deltas += self._told(self._held[:at])
            self._held, self._in_header = self._held[at:], True
            return True
        n_certain = len(self._held) - undecided(self._held, _MARKERS)
        deltas += self._told(self._held[:n_certain])
        self._held = self._held[n_certain:]
        return False

    def _told(self, text: str) -> list[Delta]:
        if self._kind == "call":
            return self._calls.more(text)
        return reasoning(text) if self._kind == "reasoning" else content(text)

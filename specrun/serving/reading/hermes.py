"""Calls of tools as Hermes and Qwen write them in <tool_call> and </tool_call>: JSON, or XML as Qwen's coders do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specrun.engine.text_stream import undecided
from specrun.serving.reading.calls import Call, Calls, JsonCall, XmlCall
from specrun.serving.reading.deltas import Delta, content

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesReader:
    """Reads an answer with such calls. White space around calls is no part of the answer.

    tools: the JSON schema of each tool's arguments, by name.
    """

    def __init__(self, tools: Mapping[str, Any]) -> None:
        self._tools = tools
        self._calls = Calls()
        self._call: Call = JsonCall()
        self._skips_blanks = False  # directly behind a call
        self._held = ""
        self._step: Callable[[list[Delta]], bool] = self._read_content

    def push(self, text: str) -> list[Delta]:
        self._held += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        if self._step == self._read_call:
            return [] if self._call.is_told else content(OPEN + self._call.text + self._held)
        # What is held is white space, or the beginning of a marker.
        held = OPEN + self._held if self._step == self._read_open else self._held
        return content(held.lstrip() if self._skips_blanks else held)

    # Each of these reads some of the held text, and returns whether there may be more to read.

    def _read_content(self, deltas: list[Delta]) -> bool:
        if self._skips_blanks:
            self._held = self._held.lstrip()
        before, marker, rest = self._held.partition(OPEN)
        if marker:
            deltas += content(before.rstrip())
            self._held, self._step = rest, self._read_open
            return True
        n_certain = len(before[: len(before) - undecided(before, [OPEN])].rstrip())
        deltas += content(before[:n_certain])
        self._held = before[n_certain:]
        self._skips_blanks = self._skips_blanks and not n_certain
        return False

    def _read_open(self, _deltas: list[Delta]) -> bool:
        first = self._held.lstrip()[:1]
        if not first:
            return False
        self._call = XmlCall(self._tools) if first == "<" else JsonCall()
        self._step = self._read_call
        return True

    def _read_call(self, deltas: list[Delta]) -> bool:
        call = self._call
        self._held = call.push(self._held)
        if call.is_none:
            deltas += content(OPEN + call.text)
            self._step, self._skips_blanks = self._read_content, False
            return True
        deltas += self._calls.read(call)
        if call.is_complete:
            self._step = self._read_close
        return call.is_complete

    def _read_close(self, _deltas: list[Delta]) -> bool:
        self._held = self._held.lstrip()
        if len(self._held) < len(CLOSE) and CLOSE.startswith(self._held):
            return False
        self._held = self._held.removeprefix(CLOSE)
        self._step, self._skips_blanks = self._read_content, True
        return True

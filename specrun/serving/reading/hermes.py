"""Calls of tools as Hermes and Qwen write them in <tool_call> and </tool_call>: JSON, or XML as Qwen's coders do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specrun.serving.reading.calls import Call, CallReader, JsonCall, XmlCall
from specrun.serving.reading.deltas import Delta, content

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesReader(CallReader):
    """Reads an answer with such calls. White space around calls is no part of the answer.

    tools: the JSON schema of each tool's arguments, by name.
    """

    def __init__(self, tools: Mapping[str, Any]) -> None:
        super().__init__()
        self._tools = tools

    def _read(self) -> Iterator[Delta | None]:
        while (yield from self._tell_until(content, OPEN)):
            self._skip(OPEN)
            is_xml = yield from self._follows("<")
            call: Call = XmlCall(self._tools) if is_xml else JsonCall()
            if not (yield from self._read_call(call)):
                yield from content(OPEN + call.text)
                continue
            yield from self._follows(CLOSE)
            self._skip(CLOSE)
            yield from self._skip_blanks()
        yield from content(self._held)

"""Calls of tools as Hermes and Qwen write them in <tool_call> and </tool_call>: JSON, or XML as Qwen's coders do."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NoReturn

from specrun.reading.calls import CallReader
from specrun.reading.deltas import Delta, content

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TAG = "<function="
_FUNCTION = re.compile(rf"\s*{_TAG}([^<>\n]{{1,200}})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,200})>\n?")
_PARAMETER_END, _END = "</parameter>", re.compile(r"\s*</function>")
_LONGEST_TAG = 300  # characters; a longer beginning is no tag


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
            if not (yield from self._read_xml() if is_xml else self._read_json()):
                yield from content(OPEN)
                continue
            yield from self._follows(CLOSE)
            self._skip(CLOSE)
            yield from self._skip_blanks()
        yield from content(self._held)

    def _read_xml(self) -> Generator[Delta | None, None, bool]:
        """Tell <function=NAME>, and <parameter=NAME> around each argument, which becomes JSON when it is complete.

        Returns False if the held text is no call.
        """
        while not (found := _FUNCTION.match(self._held)):
            begun = self._held.lstrip()
            may_begin = begun.startswith(_TAG) or _TAG.startswith(begun)
            if self._is_cut and may_begin:
                self._held = ""
                return True
            if self._has_ended or len(begun) > _LONGEST_TAG or not may_begin:
                return False
            yield None
        tool, comma = found[1], ""
        self._take(found.end())
        yield self._begin(tool)
        yield from self._more("{")
        while not (end := _END.match(self._held)):
            parameter = _PARAMETER.match(self._held)
            value, closed, rest = self._held[parameter.end() :].partition(_PARAMETER_END) if parameter else ("", "", "")
            if parameter and closed:
                name, self._held = parameter[1], rest
                argument = self._argument(tool, name, value.removesuffix("\n"))
                yield from self._more(f"{comma}{json.dumps(name, ensure_ascii=False)}: {argument}")
                comma = ", "
            elif self._has_ended:
                self._held = ""
                return True
            else:
                yield None
        self._take(end.end())
        yield from self._more("}")
        return True

    def _argument(self, tool: str, name: str, text: str) -> str:
        """An argument as JSON: the text itself if the schema asks for a text, or if it is no JSON."""
        schema = self._tools.get(tool)
        properties = schema.get("properties") if isinstance(schema, dict) else None
        argument = properties.get(name) if isinstance(properties, dict) else None
        if not isinstance(argument, dict) or argument.get("type") != "string":
            try:
                json.loads(text, parse_constant=_refuse)
                return text.strip()
            except (ValueError, RecursionError):
                pass
        return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> NoReturn:
    """NaN and infinities are Python's, not JSON's."""
    raise ValueError(constant)

"""A call of a tool as Qwen's coders write it: <function=NAME>, and <parameter=NAME> around each argument."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

_FUNCTION = re.compile(r"\s*<function=([^<>\n]{1,200})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,200})>\n?")
_PARAMETER_END, _END = "</parameter>", re.compile(r"\s*</function>")
_LONGEST_TAG = 300  # characters; a longer beginning is no tag


class XmlCall:
    """Reads such a call in pieces. Each argument becomes JSON when it is complete.

    name, is_complete, is_none, text: as in JsonCall.
    """

    def __init__(self, tools: Mapping[str, Any]) -> None:
        """tools: the JSON schema of each tool's arguments, by name. It says which arguments are texts."""
        self._tools = tools
        self.name: str | None = None
        self.is_complete = False
        self.is_none = False
        self.text = ""
        self._held = ""
        self._n_arguments = 0
        self._arguments = ""

    def push(self, text: str) -> str:
        """Read more text. Returns what follows the call."""
        self.text += text
        self._held += text
        while self._step():
            pass
        if not self.is_complete:
            return ""
        rest, self._held = self._held, ""
        return rest

    def arguments(self) -> str:
        """The JSON text of the arguments that was read since the last call."""
        arguments, self._arguments = self._arguments, ""
        return arguments

    def _step(self) -> bool:
        """Read one tag. Returns whether there may be another one."""
        if self.is_complete or self.is_none:
            return False
        if self.name is None:
            found = _FUNCTION.match(self._held)
            if found:
                self.name, self._held, self._arguments = found[1], self._held[found.end() :], "{"
            elif len(self._held.strip()) > _LONGEST_TAG or not _may_begin(self._held, "<function="):
                self.is_none = True
            return found is not None
        end = _END.match(self._held)
        if end:
            self._arguments += "}"
            self.is_complete, self._held = True, self._held[end.end() :]
            return False
        parameter = _PARAMETER.match(self._held)
        value, closed, rest = self._held[parameter.end() :].partition(_PARAMETER_END) if parameter else ("", "", "")
        if not parameter or not closed:
            return False
        name = parameter[1]
        pair = f"{json.dumps(name, ensure_ascii=False)}: {self._value(name, value.removesuffix(chr(10)))}"
        self._arguments += (", " if self._n_arguments else "") + pair
        self._n_arguments += 1
        self._held = rest
        return True

    def _value(self, name: str, text: str) -> str:
        """An argument as JSON: the text itself if the schema asks for a text, or if it is no JSON."""
        schema = self._tools.get(self.name or "")
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


def _may_begin(text: str, tag: str) -> bool:
    text = text.lstrip()
    return text.startswith(tag) or tag.startswith(text)

"""Calls of tools, read while they are written: as a JSON object, or in the XML of Qwen's coders."""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Container, Generator, Mapping
from typing import Any, NoReturn

from specrun.serving.reading.deltas import CallDelta, Delta, Reader

_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")
_TAG = "<function="
_FUNCTION = re.compile(rf"\s*{_TAG}([^<>\n]{{1,200}})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,200})>\n?")
_PARAMETER_END, _END = "</parameter>", re.compile(r"\s*</function>")
_LONGEST_TAG = 300  # characters; a longer beginning is no tag


class Call(ABC):
    """A call that is read in pieces.

    name: the tool's; None as long as it is not known.
    is_complete: whether the call has ended.
    is_none: whether the text turned out to be no call.
    text: everything that was read; it is a part of the answer if this is no call.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_complete = False
        self.is_none = False
        self.text = ""
        self._arguments = ""  # their JSON text that was read since the last call of `arguments`

    @abstractmethod
    def push(self, text: str) -> str:
        """Read more text. Returns what follows the call, or the place where the text turned out to be no call."""

    def arguments(self) -> str:
        """The JSON text of the arguments that was read since the last call of this method."""
        arguments, self._arguments = self._arguments, ""
        return arguments


class JsonCall(Call):
    """Reads {"name": ..., "arguments": {...}}, or "parameters". An object without a name is no call.

    names: those that calls may have; None for any.
    """

    def __init__(self, names: Container[str] | None = None) -> None:
        super().__init__()
        self._names = names
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._key: str | None = None
        self._part = ""  # the key or the value that is being read, as JSON
        self._in_arguments = False  # an object, which is passed on as it is
        self._has_arguments = False

    def push(self, text: str) -> str:
        for i, character in enumerate(text):
            if self.is_complete or self.is_none:
                return text[i:]
            self.text += character
            self._read(character)
        return ""

    def _read(self, character: str) -> None:
        if self._in_string:
            self._keep(character)
            self._in_string = self._is_escaped or character != '"'
            self._is_escaped = not self._is_escaped and character == "\\"
        elif self._depth == 0:
            self._depth = int(character == "{")
            self.is_none = not self._depth and not character.isspace()
        elif character in "{[":
            if self._depth == 1 and character == "{" and self._key in _ARGUMENTS and not self._has_arguments:
                self._in_arguments = self._has_arguments = True
            self._depth += 1
            self._keep(character)
        elif character in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._end_value()
                self.is_none = self.is_none or self.name is None
                self.is_complete = not self.is_none
                if not self._has_arguments:
                    self._arguments = "{}"
            else:
                self._keep(character)
                self._in_arguments = self._in_arguments and self._depth > 1
        elif self._depth == 1 and character == ":" and self._key is None:
            self._key, self._part = self._string(), ""
        elif self._depth == 1 and character == ",":
            self._end_value()
        else:
            self._in_string = character == '"'
            self._keep(character)

    def _keep(self, character: str) -> None:
        if self._in_arguments:
            self._arguments += character
        else:
            self._part += character

    def _end_value(self) -> None:
        if self._key in _NAMES and self.name is None:
            self.name = self._string()
            self.is_none = not (self.name is None or self._names is None or self.name in self._names)
        elif self._key in _ARGUMENTS and not self._has_arguments:
            # Some models write the object as a string.
            self._has_arguments, self._arguments = True, self._string() or self._part.strip()
        self._key, self._part = None, ""

    def _string(self) -> str | None:
        try:
            value = json.loads(self._part)
        except ValueError:
            return None
        return whole_characters(value) if isinstance(value, str) else None


class XmlCall(Call):
    """Reads <function=NAME>, and <parameter=NAME> around each argument, which becomes JSON when it is complete.

    tools: the JSON schema of each tool's arguments, by name. It says which arguments are texts.
    """

    def __init__(self, tools: Mapping[str, Any]) -> None:
        super().__init__()
        self._tools = tools
        self._held = ""
        self._has_arguments = False

    def push(self, text: str) -> str:
        self.text += text
        self._held += text
        if self.name is None:
            found = _FUNCTION.match(self._held)
            if not found:
                begun = self._held.lstrip()
                may_begin = begun.startswith(_TAG) or _TAG.startswith(begun)
                self.is_none = len(begun) > _LONGEST_TAG or not may_begin
                return ""
            self.name, self._held, self._arguments = found[1], self._held[found.end() :], "{"
        while parameter := _PARAMETER.match(self._held):
            value, closed, rest = self._held[parameter.end() :].partition(_PARAMETER_END)
            if not closed:
                return ""
            name, self._held = parameter[1], rest
            pair = f"{json.dumps(name, ensure_ascii=False)}: {self._value(name, value.removesuffix(chr(10)))}"
            self._arguments += (", " if self._has_arguments else "") + pair
            self._has_arguments = True
        end = _END.match(self._held)
        if not end:
            return ""
        self._arguments += "}"
        self.is_complete = True
        return self._held[end.end() :]

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


class CallReader(Reader):
    """What the readers of calls share: calls are numbered, and told while they are read."""

    def __init__(self) -> None:
        super().__init__()
        self._n_calls = 0

    def _begin(self, name: str) -> Delta:
        self._n_calls += 1
        return Delta(call=CallDelta(self._n_calls - 1, id=f"call_{secrets.token_hex(12)}", name=name))

    def _more(self, arguments: str) -> list[Delta]:
        """The latest call has more arguments."""
        return [Delta(call=CallDelta(self._n_calls - 1, arguments))] if arguments else []

    def _read_call(self, call: Call) -> Generator[Delta | None, None, bool]:
        """Tell a call, from the time when its name is known. Returns False if it was none."""
        is_told = False
        while True:
            self._held = call.push(self._held)
            if call.name is not None and not call.is_none:
                if not is_told:
                    yield self._begin(call.name)
                is_told = True
                yield from self._more(call.arguments())
            if call.is_complete or call.is_none or self._has_ended:
                return is_told
            yield None


def whole_characters(text: str) -> str:
    """`text` with U+FFFD for halves of surrogate pairs, which JSON can escape and UTF-8 cannot represent."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _refuse(constant: str) -> NoReturn:
    """NaN and infinities are Python's, not JSON's."""
    raise ValueError(constant)

"""Calls of tools, read while they are written: as a JSON object, or in the XML of Qwen's coders."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any, NoReturn

from specrun.serving.reading.deltas import CallDelta, Delta

_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")
_FUNCTION = re.compile(r"\s*<function=([^<>\n]{1,200})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,200})>\n?")
_PARAMETER_END, _END = "</parameter>", re.compile(r"\s*</function>")
_LONGEST_TAG = 300  # characters; a longer beginning is no tag


class Call:
    """A call that is read in pieces.

    name: the tool's; None as long as it is not known.
    is_complete: whether the call has ended.
    is_none: whether the text turned out to be no call.
    is_told: whether its beginning was given out.
    text: everything that was read; it is a part of the answer if this is no call.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_complete = False
        self.is_none = False
        self.is_told = False
        self.text = ""
        self._arguments = ""  # their JSON text that was read since the last call of `arguments`

    def push(self, text: str) -> str:
        """Read more text. Returns what follows the call, or the place where the text turned out to be no call."""
        raise NotImplementedError

    def arguments(self) -> str:
        """The JSON text of the arguments that was read since the last call of this method."""
        arguments, self._arguments = self._arguments, ""
        return arguments


class JsonCall(Call):
    """Reads {"name": ..., "arguments": {...}}, or "parameters". An object without a name is no call."""

    def __init__(self) -> None:
        super().__init__()
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
                self.is_complete, self.is_none = self.name is not None, self.name is None
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
        self._n_arguments = 0

    def push(self, text: str) -> str:
        self.text += text
        self._held += text
        while self._step():
            pass
        if not self.is_complete:
            return ""
        rest, self._held = self._held, ""
        return rest

    def _step(self) -> bool:
        """Read one tag. Returns whether there may be another."""
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


class Calls:
    """Numbers the calls of an answer. n: how many have begun."""

    def __init__(self) -> None:
        self.n = 0

    def read(self, call: Call) -> list[Delta]:
        """What was read of a call since the last time; nothing before its name is known."""
        if call.name is None:
            return []
        begun = [] if call.is_told else [self.begin(call.name)]
        call.is_told = True
        return begun + self.more(call.arguments())

    def begin(self, name: str) -> Delta:
        self.n += 1
        return Delta(call=CallDelta(self.n - 1, id=f"call_{secrets.token_hex(12)}", name=name))

    def more(self, arguments: str) -> list[Delta]:
        """The latest call has more arguments."""
        return [Delta(call=CallDelta(self.n - 1, arguments))] if arguments else []


def whole_characters(text: str) -> str:
    """`text` with U+FFFD for halves of surrogate pairs, which JSON can escape and UTF-8 cannot represent."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _refuse(constant: str) -> NoReturn:
    """NaN and infinities are Python's, not JSON's."""
    raise ValueError(constant)


def _may_begin(text: str, tag: str) -> bool:
    text = text.lstrip()
    return text.startswith(tag) or tag.startswith(text)

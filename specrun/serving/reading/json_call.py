"""A call of a tool written as a JSON object, read while it is written."""

from __future__ import annotations

import json

_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")


class JsonCall:
    """Reads {"name": ..., "arguments": {...}}, or "parameters", in pieces.

    name: the tool's; None as long as it is not known.
    is_complete: whether the object has ended.
    is_none: whether this is no call: no object, or an object without a name.
    text: everything that was read; it is a part of the answer if this is no call.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_complete = False
        self.is_none = False
        self.text = ""
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._key: str | None = None
        self._part = ""  # the key or the value that is being read, as JSON
        self._in_arguments = False  # an object, which is passed on as it is
        self._has_arguments = False
        self._arguments = ""  # read since the last call of `arguments`

    def push(self, text: str) -> str:
        """Read more text. Returns what follows the object, or the place where the text turned out to be no call."""
        for i, character in enumerate(text):
            if self.is_complete or self.is_none:
                return text[i:]
            self.text += character
            self._read(character)
        return ""

    def arguments(self) -> str:
        """The JSON text of the arguments that was read since the last call; none before the name is known."""
        if self.name is None:
            return ""
        arguments, self._arguments = self._arguments, ""
        return arguments

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
                self._end()
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

    def _end(self) -> None:
        self.is_complete = self.name is not None
        self.is_none = self.name is None
        if not self._has_arguments:
            self._arguments = "{}"


def whole_characters(text: str) -> str:
    """`text` with U+FFFD for halves of surrogate pairs, which JSON can escape and UTF-8 cannot represent."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

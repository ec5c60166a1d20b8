"""Calls of tools that are JSON objects, read while they are written."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Container, Generator, Iterable, Iterator
from typing import Any

from specrun.locations import given_json
from specrun.reading.deltas import CallDelta, Delta, Reader

_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")


class JsonCall:
    """Reads {"name": ..., "arguments": {...}}, or "parameters", in pieces. An object without a name is no call.

    names: those that calls may have; None for any.
    name: the tool's; None as long as it is not known.
    arguments: the JSON text of the arguments; who reads it may take it away.
    is_call: whether the text is a call; None as long as it goes on.
    text: everything that was read.
    """

    def __init__(self, names: Container[str] | None = None) -> None:
        self.name: str | None = None
        self.arguments = ""
        self.is_call: bool | None = None
        self.text = ""
        self._names = names
        self._has_arguments = False
        self._reading = self._read()
        next(self._reading)

    def push(self, text: str) -> str:
        """Read more text. Returns what follows the call, or the place where the text turned out to be no call."""
        n_read = 0
        while n_read < len(text) and self.is_call is None:
            self._reading.send(text[n_read])
            n_read += 1
        self.text += text[:n_read]
        return text[n_read:]

    def _read(self) -> Generator[None, str, None]:
        """Reads an object from its characters. Each `yield` waits for the next."""
        while (character := (yield)).isspace():
            pass
        if character != "{":
            self.is_call = False
            yield  # for ever
        end = ","
        while end == ",":
            key, end = yield from self._part(":,}")
            value = ""
            if end == ":":
                value, end = yield from self._part(",}", is_arguments=_string(key) in _ARGUMENTS)
            self._add(_string(key), value)
        self.is_call = self.name is not None
        if not self._has_arguments:
            self.arguments = "{}"
        yield

    def _part(self, ends: str, is_arguments: bool = False) -> Generator[None, str, tuple[str, str]]:
        """Reads the JSON text before the first of `ends` that is not inside of it. Returns both.

        The first object with arguments is passed on while it is read.
        """
        part, depth = "", 0
        in_string = is_escaped = in_arguments = False
        while True:
            character = yield
            if character in ends and not (depth or in_string):
                return part, character
            if character == "{" and not (depth or in_string or self._has_arguments) and is_arguments:
                in_arguments = self._has_arguments = True
            if in_arguments:
                self.arguments += character
            else:
                part += character
            if in_string:
                in_string = is_escaped or character != '"'
                is_escaped = not is_escaped and character == "\\"
            else:
                in_string = character == '"'
                depth += (character in "{[") - (character in "}]")
                in_arguments = in_arguments and depth > 0

    def _add(self, key: str | None, value: str) -> None:
        if key in _NAMES and self.name is None:
            name = _string(value)
            if self._names is None or name in self._names:
                self.name = name
            else:
                self.is_call = False
        elif key in _ARGUMENTS and not self._has_arguments:
            # Some models write the object as a string.
            self._has_arguments, self.arguments = True, _string(value) or value.strip()


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

    def _read_json(self, names: Collection[str] | None = None) -> Generator[Delta | None, None, bool]:
        """Tell a call, from the time when its name is known. names: as in `JsonCall`.

        Returns False if it was none, and its text is held again.
        """
        call, is_told = JsonCall(names), False
        while True:
            self._held = call.push(self._held)
            if call.name is not None:
                if not is_told:
                    yield self._begin(call.name)
                yield from self._more(call.arguments)
                is_told, call.arguments = True, ""
            if call.is_call is not None or self._has_ended:
                break
            yield None
        if not is_told and self._is_cut and call.is_call is None and _may_be_call(call.text, names):
            return True  # cut before its name: there is nothing to tell
        if not is_told:
            self._held = call.text + self._held
        return is_told


def _may_be_call(begun: str, names: Iterable[str] | None) -> bool:
    """Whether a call of one of these tools may begin like this. Without names, everything else was ruled out."""
    if names is None:
        return True
    begun = "".join(begun.split())
    return any(f'{{"name":"{name}"'.startswith(begun) for name in names)


def _string(part: str) -> str | None:
    """The text that stands there as JSON; None if anything else stands there."""
    try:
        value = json.loads(part)
    except (ValueError, RecursionError):
        return None
    return whole_characters(value) if isinstance(value, str) else None


def whole_characters(text: str) -> str:
    """`text` with U+FFFD for halves of surrogate pairs, which JSON can escape and UTF-8 cannot represent."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def arguments_of(text: str) -> dict[str, Any]:
    """A call's arguments; empty for half an object, of an answer that was cut off."""
    try:
        value = given_json(whole_characters(json.dumps(json.loads(text), ensure_ascii=False)), "the call", ValueError)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


PYTHON_TAG = "<|python_tag|>"


class Llama3Reader(CallReader):
    """Reads an answer that may be such calls. An object that names a tool other than `tools` is the answer itself."""

    def __init__(self, tools: Collection[str]) -> None:
        super().__init__()
        self._tools = tools

    def _read(self) -> Iterator[Delta | None]:
        while (yield from self._follows("{", PYTHON_TAG)):
            if self._held.lstrip().startswith(PYTHON_TAG):
                self._skip(PYTHON_TAG)
                continue
            if not (yield from self._read_json(self._tools)):
                break
            yield from self._skip_blanks("; \n")
        yield from super()._read()

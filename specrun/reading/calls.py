"""Calls of tools, read while they are written: JSON objects, as Llama has them; those that Hermes and Qwen write
between <tool_call> and </tool_call>, as JSON or, by Qwen's coders, as XML; and those of gpt-oss ("harmony"), whose
answers have channels: analysis, final, and commentary with the calls.

    <|channel|>analysis<|message|>I need the weather.<|end|><|start|>assistant
    <|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>

Harmony's markers are control tokens, whose text must be shown to the reader.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from specrun.locations import given_json
from specrun.reading.deltas import CallDelta, Delta, Reader, content, reasoning

_ARGUMENTS = ("arguments", "parameters")


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
        """Tell {"name": ..., "arguments": {...}}, or "parameters", from the time when its name is known.

        names: those that calls may have; None for any. Returns False, with the text held, if it is no call.
        """
        self._at = 0  # characters of the held text that were read
        self._arguments = ""  # that were read and not told yet
        self._is_told = self._has_arguments = False
        while (character := (yield from self._next())).isspace():
            pass
        end = {"{": ",", ",": "}"}.get(character, character)  # of an object; another beginning ends at once
        while end == ",":
            part, end = yield from self._part(":,}")
            key, value = _string(part), ""
            if end == ":":
                value, end = yield from self._part(",}", is_arguments=key in _ARGUMENTS)
            if end and key in ("name", "function") and not self._is_told:
                name = _string(value)
                if names is not None and name not in names:
                    return False
                if name is not None:
                    yield self._begin(name)
                    self._is_told = True
            elif end and key in _ARGUMENTS and not self._has_arguments:
                # Some models write the object as a string.
                self._has_arguments, self._arguments = True, _string(value) or value.strip()
        if not self._is_told:
            is_begun = self._is_cut and not end and _may_be_call(self._held, names)
            self._held = "" if is_begun else self._held  # cut before its name: there is nothing to tell
            return is_begun
        yield from self._tell_arguments("" if self._has_arguments or not end else "{}")
        self._held = self._held[self._at :]
        return True

    def _tell_arguments(self, further: str = "") -> Iterator[Delta]:
        arguments, self._arguments = self._arguments + further, ""
        yield from self._more(arguments)

    def _next(self) -> Generator[Delta | None, None, str]:
        """The next character of a call; empty where nothing follows."""
        while self._at == len(self._held):
            if self._is_told:
                yield from self._tell_arguments()
            if self._has_ended:
                return ""
            yield None
        self._at += 1
        return self._held[self._at - 1]

    def _part(self, ends: str, is_arguments: bool = False) -> Generator[Delta | None, None, tuple[str, str]]:
        """The JSON text before the first of `ends` that is not inside of it, and that end; empty where nothing follows.

        The first object with arguments is told while it is read.
        """
        part, depth = "", 0
        in_string = is_escaped = in_arguments = False
        while character := (yield from self._next()):
            if character in ends and not (depth or in_string):
                break
            if character == "{" and not (depth or in_string or self._has_arguments) and is_arguments:
                in_arguments = self._has_arguments = True
            if in_arguments:
                self._arguments += character
            else:
                part += character
            if in_string:
                in_string = is_escaped or character != '"'
                is_escaped = not is_escaped and character == "\\"
            else:
                in_string = character == '"'
                depth += (character in "{[") - (character in "}]")
                in_arguments = in_arguments and depth > 0
        return part, character


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


TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"
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
        while (yield from self._tell_until(content, TOOL_CALL)):
            self._skip(TOOL_CALL)
            is_xml = yield from self._follows("<")
            if not (yield from self._read_xml() if is_xml else self._read_json()):
                yield from content(TOOL_CALL)
                continue
            yield from self._follows(TOOL_CALL_END)
            self._skip(TOOL_CALL_END)
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


CHANNEL, MESSAGE, START, MESSAGE_END, CONSTRAIN = "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"
# How the answer's own channel begins, with and without the format of its text.
FINAL_HEADERS = tuple(
    f"{CHANNEL}final{form}{MESSAGE}" for form in ("", " json", f" {CONSTRAIN}json", f"{CONSTRAIN}json")
)
_CHANNEL_MARKERS = (CHANNEL, START, MESSAGE_END, "<|call|>", "<|return|>")
_CHANNEL_HEADERS = (*_CHANNEL_MARKERS, MESSAGE, "to=")  # what a header begins with
_CALLED = re.compile(r"to=functions\.([^\s<]+)")


class HarmonyReader(CallReader):
    """Reads an answer in channels. A text without channels is the answer itself.

    header: the beginning of the first message's header, where the prompt ends with it.
    """

    def __init__(self, header: str = "") -> None:
        super().__init__()
        self._held = header

    def _read(self) -> Iterator[Delta | None]:
        is_going_on = True
        while is_going_on:
            tell: Callable[[str], list[Delta]] = content
            if (yield from self._follows(*_CHANNEL_HEADERS)):
                while MESSAGE not in self._held:
                    yield None  # a header that is not complete adds nothing
                header, _, self._held = self._held.partition(MESSAGE)
                if header.partition(CHANNEL)[2].lstrip().startswith("analysis"):
                    tell = reasoning
                if called := _CALLED.search(header):
                    yield self._begin(called[1])
                    tell = self._more
            is_going_on = yield from self._tell_until(tell, *_CHANNEL_MARKERS)
            n_blanks = len(self._held) - len(self._held.lstrip())
            yield from tell(self._take(n_blanks))

"""What readers give out: additions to the answer, to its reasoning, and to its calls of tools; and the steps of which
readers consist, those for calls in JSON included.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

from specrun.locations import given_json


@dataclass(frozen=True)
class CallDelta:
    """An addition to a call of a tool.

    index: which call of the answer, from 0. arguments: more of its JSON text.
    id, name: of a call that begins; None in every later addition to it.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Delta:
    """An addition to the text of the answer, to the reasoning before it, or to a call."""

    content: str = ""
    reasoning: str = ""
    call: CallDelta | None = None

    @property
    def part(self) -> tuple[Literal["content", "reasoning", "call"], int]:
        """What is added to, and which call it is."""
        if self.call:
            return "call", self.call.index
        return ("reasoning" if self.reasoning else "content"), 0

    @property
    def text(self) -> str:
        """What is added."""
        return self.call.arguments if self.call else self.reasoning or self.content


def content(text: str) -> list[Delta]:
    return [Delta(content=text)] if text else []


def reasoning(text: str) -> list[Delta]:
    return [Delta(reasoning=text)] if text else []


def whole_parts(deltas: Iterable[Delta]) -> list[Delta]:
    """The parts of an answer, each of them whole."""
    parts: list[Delta] = []
    for _, additions in groupby(deltas, attrgetter("part")):
        first, *more = additions
        text = "".join(delta.text for delta in [first, *more])
        call = [Delta(call=replace(first.call, arguments=text))] if first.call else []
        parts += call or (reasoning(text) if first.reasoning else content(text))
    return parts


def undecided(text: str, markers: Sequence[str]) -> int:
    """Length of the longest tail of `text` that is the beginning, but not all, of a text in `markers`."""
    longest = max(map(len, markers), default=0)
    lengths = range(min(longest - 1, len(text)), 0, -1)
    return next((n for n in lengths if any(marker.startswith(text[-n:]) for marker in markers)), 0)


class Reader:
    """Reads an answer, which is all of the text; other readers find more in it.

    _read: reads the held text from the answer's beginning to its end. It yields what it tells, and None where it needs
        more text. _held: the text that came and was not read yet. _has_ended: whether nothing follows it. _is_cut:
        whether more would have followed, so that the beginning of a marker is a part of it and not text.
    """

    def __init__(self) -> None:
        self._held = ""
        self._has_ended = self._is_cut = False
        self._told = self._read()

    def _read(self) -> Iterator[Delta | None]:
        while True:
            yield from content(self._take(len(self._held)))
            yield None

    def push(self, text: str) -> list[Delta]:
        """What `text`, the next piece of the answer, adds."""
        self._held += text
        return list(iter(lambda: next(self._told), None))

    def finish(self, is_cut: bool = False) -> list[Delta]:
        """What is added once it is known that nothing follows. is_cut: whether the model had not ended there."""
        self._has_ended, self._is_cut = True, is_cut
        return self.push("")

    def parts(self, text: str) -> tuple[str, str]:
        """The answer and the reasoning in `text`, which is all that there is to read."""
        deltas = self.push(text) + self.finish()
        return "".join(delta.content for delta in deltas), "".join(delta.reasoning for delta in deltas)

    # The steps of which readers consist. Blanks are any white space.

    def _take(self, n: int) -> str:
        """The next `n` characters."""
        text, self._held = self._held[:n], self._held[n:]
        return text

    def _skip(self, tag: str) -> None:
        """Leave out blanks, and `tag` if it follows them."""
        self._held = self._held.lstrip().removeprefix(tag)

    def _skip_blanks(self, blanks: str | None = None) -> Iterator[None]:
        """Leave out all blanks, or all characters that are in `blanks`."""
        self._held = self._held.lstrip(blanks)
        while not (self._held or self._has_ended):
            yield None
            self._held = self._held.lstrip(blanks)

    def _follows(self, *tags: str) -> Generator[None, None, bool]:
        """Find out whether blanks, if any, and one of `tags` follow."""
        while not (begun := self._held.lstrip()).startswith(tags):
            may_follow = any(tag.startswith(begun) for tag in tags)
            if self._is_cut and may_follow and begun.startswith("<"):
                self._held = ""
            if self._has_ended or not may_follow:
                return False
            yield None
        return True

    def _tell_until(self, tell: Callable[[str], list[Delta]], *markers: str) -> Generator[Delta | None, None, bool]:
        """Tell the text before the first of `markers`, without the blanks in front of it, or all but the last blanks.

        Returns whether there was a marker. It is held then, after its blanks.
        """
        while True:
            at = min((at for at in map(self._held.find, markers) if at >= 0), default=None)
            n_undecided = 0 if self._has_ended and not self._is_cut else undecided(self._held, markers)
            n_before = len(self._held) - n_undecided if at is None else at
            yield from tell(self._take(len(self._held[:n_before].rstrip())))
            if self._has_ended and at is None:
                self._held = self._held[: len(self._held) - n_undecided]
            if at is not None or self._has_ended:
                return at is not None
            yield None


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

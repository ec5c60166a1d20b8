"""Regular expressions of JSON schemas (ECMA-262) as regular languages.

Classes, groups, alternatives, repetitions, anchors and looking ahead are understood. What no regular language can say,
or what programming languages read differently, is refused by its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn

from specrun.constraints.regular import EVERY, Languages, Ranges, union, without

_MOST_TIMES = 1000
_MOST_UNROLLED = 8  # repetitions of a group with anchors in it

_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_BEYOND_ASCII: Ranges = ((0x80, 0xD7FF), (0xE000, 0x10FFFF))
_SPACE: Ranges = union(
    ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    ((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
_SPACE_SOMEWHERE: Ranges = union(_SPACE, ((0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF)))
_LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_HEX = {"x": re.compile("([0-9a-fA-F]{2})"), "u": re.compile("([0-9a-fA-F]{4})|{([0-9a-fA-F]{1,6})}")}


# How groups begin that are understood, with what says whether they look ahead.
_GROUP = re.compile(r"\((?:\?(?:([:=!])|P?<(?![=!])[^>]*>))?")
# How often something comes. "As few as possible" means the same texts.
_TIMES = re.compile(r"([*+?]|{([0-9]+)(,([0-9]*))?})\??")


class PatternError(ValueError):
    """Why a pattern cannot be used, as the rest of a sentence that begins with "the pattern"."""


# The texts of a part followed by one of a language. The flag: whether they begin the text; None for perhaps. Parts are
# read from the end to the beginning, because some look ahead.
_Before = Callable[[int, bool | None], int]
# Whether a part has no anchors, has one within, or is one; `^`, `$` and what looks ahead are anchors.
_PLAIN, _ANCHORED, _ANCHOR = range(3)
_Part = tuple[int, _Before]


def pattern_language(languages: Languages, pattern: str) -> int:
    """The texts in which `pattern` is found: anywhere, if it has no anchors. Raises PatternError."""
    _, before = _Parser(languages, pattern).parsed()
    found, later = before(languages.everything, True), before(languages.everything, False)
    some = languages.times(languages.character, 1, None)
    return languages.any_of([found, languages.sequence([some, later])])


@lru_cache(1)
def _digits_somewhere() -> Ranges:
    """All characters that are \\d in some language: Python's and Rust's has those of all scripts."""
    return union((code, code) for code in range(0x110000) if chr(code).isdecimal())


def _classes(letter: str) -> tuple[Ranges, Ranges]:
    """The characters that are surely in the class \\d, \\w or \\s, and those that are in it in some languages."""
    if letter == "d":
        return _DIGIT, _digits_somewhere()
    return (_WORD, union(_WORD, _BEYOND_ASCII)) if letter == "w" else (_SPACE, _SPACE_SOMEWHERE)


class _Parser:
    """Reads an expression into its parts, from left to right."""

    def __init__(self, languages: Languages, pattern: str) -> None:
        self._languages = languages
        self._pattern = pattern
        self._at = 0

    def parsed(self) -> _Part:
        part = self._alternatives()
        if self._at < len(self._pattern):
            self._refuse("a ) without (")
        return part

    def _refuse(self, what: str, at: int | None = None) -> NoReturn:
        place = self._at if at is None else at
        raise PatternError(f"has {what} (character {place + 1}), which is not supported")

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        is_there = self._pattern.startswith(text, self._at)
        self._at += len(text) if is_there else 0
        return is_there

    def _alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        befores = [before for _, before in parts]
        if len(parts) == 1:
            return parts[0]
        kind = min(max(kind for kind, _ in parts), _ANCHORED)
        return kind, lambda rest, is_start: self._languages.any_of([before(rest, is_start) for before in befores])

    def _sequence(self) -> _Part:
        parts = list[_Part]()
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated(*self._one()))
        n_start = next((i for i, (kind, _) in enumerate(parts) if kind != _ANCHOR), len(parts))

        def before(rest: int, is_start: bool | None) -> int:
            for i, (_, one) in reversed(list(enumerate(parts))):
                rest = one(rest, is_start if i <= n_start else None)
            return rest

        return min(max((kind for kind, _ in parts), default=_PLAIN), _ANCHORED), before

    def _one(self) -> _Part:
        at, char = self._at, self._next()
        self._at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return self._chars(self._class())
        if char == ".":
            return self._chars(without(EVERY, _LINE_ENDS))
        if char == "$":
            return _ANCHOR, lambda rest, _: self._languages.all_of([rest, self._languages.empty])
        if char == "^":
            return _ANCHOR, lambda rest, is_start: self._started(rest, is_start, at)
        if char == "\\":
            return self._chars(self._escape()[0])
        if char in "*+?{":
            self._refuse(f"{char} after nothing that can be repeated", at)
        return self._chars(((ord(char), ord(char)),))

    def _chars(self, ranges: Ranges) -> _Part:
        return _PLAIN, lambda rest, _: self._languages.sequence([self._languages.one_of(ranges), rest])

    def _started(self, rest: int, is_start: bool | None, at: int) -> int:
        if is_start is None:
            raise PatternError(f"has ^ after something else (character {at + 1}), which is not supported")
        return rest if is_start else self._languages.nothing

    def _group(self) -> _Part:
        at, languages = self._at - 1, self._languages
        begun = _GROUP.match(self._pattern, at)
        assert begun
        self._at, ahead = begun.end(), begun[1] or ""
        if begun[0] == "(" and self._next() == "?":
            self._refuse(self._pattern[at : at + 4], at)
        kind, inner = self._alternatives()
        if not self._take(")"):
            self._refuse("a ( without )", at)

        def before(rest: int, is_start: bool | None) -> int:
            found = inner(languages.everything, is_start)
            return languages.all_of([languages.none_of(found) if ahead == "!" else found, rest])

        return (_ANCHOR, before) if ahead in ("=", "!") else (kind, inner)

    def _repeated(self, kind: int, part: _Before) -> _Part:
        at, languages = self._at, self._languages
        found = _TIMES.match(self._pattern, at)
        if not found:
            if self._next() == "{":
                self._refuse("a { that begins no number of times", at)
            return kind, part
        self._at = found.end()
        sign, first, comma, last = found.groups()
        least = int(first or sign == "+")
        most = int(last) if last else 1 if sign == "?" else None if comma or sign in "*+" else least
        if max(least, most or 0) > _MOST_TIMES or (most is not None and most < least):
            self._refuse(found[0], at)
        if self._next() in ("*", "+", "?", "{"):
            self._refuse(f"{self._next()} after a repetition")
        if kind == _ANCHOR:
            self._refuse("a repeated anchor", at)
        if kind == _PLAIN:
            return _PLAIN, lambda rest, _: languages.sequence(
                [languages.times(part(languages.empty, None), least, most), rest]
            )
        if most is None or most > _MOST_UNROLLED:
            raise PatternError("repeats a group with an anchor in it, which is not supported")

        def unrolled(rest: int, is_start: bool | None) -> int:
            result = rest
            for n in range(most, 0, -1):
                longer = part(result, is_start if n == 1 else None)
                result = longer if n <= least else languages.any_of([longer, rest])
            return result

        return _ANCHORED, unrolled

    def _escape(self) -> tuple[Ranges, Ranges]:
        """What follows a backslash: the characters that it surely stands for, and those that it may stand for."""
        at, char = self._at - 1, self._next()
        self._at += 1
        if char and char in "dws":
            return _classes(char)
        if char and char in "DWS":
            surely, somewhere = _classes(char.lower())
            return without(EVERY, somewhere), without(EVERY, surely)
        code = _CONTROLS.get(char)
        if char in _HEX:
            number = _HEX[char].match(self._pattern, self._at)
            code = int(number[0].strip("{}"), 16) if number else 0xD800
            if not number or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
                self._refuse(f"\\{char} without the number of a character", at)
            self._at = number.end()
        elif code is None and (not char or (char.isascii() and char.isalnum())):
            self._refuse(f"\\{char}", at)
        code = ord(char) if code is None else code
        return ((code, code),), ((code, code),)

    def _class(self) -> Ranges:
        at = self._at - 1
        is_negated = self._take("^")
        surely, somewhere = list[Ranges](), list[Ranges]()
        while not self._take("]"):
            low = self._class_one(at)
            if self._pattern.startswith("-", self._at) and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._class_one(at)
                if any(len(one) != 1 or one[0][0] != one[0][1] for one, _ in (low, high)) or high[0] < low[0]:
                    self._refuse("a range without an end", at)
                low = (((low[0][0][0], high[0][0][0]),),) * 2
            surely.append(low[0])
            somewhere.append(low[1])
        return without(EVERY, union(*somewhere)) if is_negated else union(*surely)

    def _class_one(self, at: int) -> tuple[Ranges, Ranges]:
        char = self._next()
        if not char:
            self._refuse("a [ without ]", at)
        if char == "[" and self._pattern[self._at + 1 : self._at + 2] == ":":
            self._refuse("a [: class", at)
        self._at += 1
        if char != "\\":
            return (((ord(char), ord(char)),),) * 2
        if self._take("b"):
            return (((8, 8),),) * 2
        return (((0x2D, 0x2D),),) * 2 if self._take("-") else self._escape()

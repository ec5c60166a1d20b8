"""Regular expressions of JSON schemas (ECMA-262) as regular languages.

Classes, groups, alternatives, repetitions, anchors and looking ahead are understood. What no regular language can say,
or what programming languages read differently, is refused by its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NoReturn

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


class PatternError(ValueError):
    """Why a pattern cannot be used, as the rest of a sentence that begins with "the pattern"."""


def pattern_language(languages: Languages, pattern: str) -> int:
    """The texts in which `pattern` is found: anywhere, if it has no anchors. Raises PatternError."""
    tree = _Parser(pattern).parsed()
    builder = _Builder(languages)
    found = builder.before(tree, languages.everything, is_start=True)
    later = builder.before(tree, languages.everything, is_start=False)
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
    """Reads an expression into tuples: a kind, and its parts.

    chars: ranges. sequence, any: lists of parts. times: a part, the least and the most. ahead: a part, and whether it
    must not follow. start: its place. end.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def parsed(self) -> Any:
        tree = self._alternatives()
        if self._at < len(self._pattern):
            self._refuse("a ) without (")
        return tree

    def _refuse(self, what: str, at: int | None = None) -> NoReturn:
        place = self._at if at is None else at
        raise PatternError(f"has {what} (character {place + 1}), which is not supported")

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        is_there = self._pattern.startswith(text, self._at)
        self._at += len(text) if is_there else 0
        return is_there

    def _alternatives(self) -> Any:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return ("any", parts) if len(parts) > 1 else parts[0]

    def _sequence(self) -> Any:
        parts = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated(self._one()))
        return ("sequence", parts)

    def _one(self) -> Any:
        at, char = self._at, self._next()
        self._at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return ("chars", self._class())
        if char == ".":
            return ("chars", without(EVERY, _LINE_ENDS))
        if char in "^$":
            return ("start", at + 1) if char == "^" else ("end",)
        if char == "\\":
            return ("chars", self._escape()[0])
        if char in "*+?{":
            self._refuse(f"{char} after nothing that can be repeated", at)
        return ("chars", ((ord(char), ord(char)),))

    def _group(self) -> Any:
        at, ahead = self._at - 1, None
        if self._take("?"):
            if self._take("=") or self._take("!"):
                ahead = self._pattern[self._at - 1]
            elif self._take("P<") or (self._next() == "<" and self._pattern[self._at + 1 : self._at + 2] not in "=!"):
                self._at = self._pattern.find(">", self._at) + 1 or self._refuse("a name without >", at)
            elif not self._take(":"):
                self._refuse(self._pattern[at : at + 4], at)
        inner = self._alternatives()
        if not self._take(")"):
            self._refuse("a ( without )", at)
        return ("ahead", inner, ahead == "!") if ahead else inner

    def _repeated(self, part: Any) -> Any:
        at = self._at
        least: int
        most: int | None
        if self._take("*"):
            least, most = 0, None
        elif self._take("+"):
            least, most = 1, None
        elif self._take("?"):
            least, most = 0, 1
        elif self._take("{"):
            inside, closed, _ = self._pattern[self._at :].partition("}")
            first, comma, second = inside.partition(",")
            if not closed or not all(number.isdecimal() or not number for number in (first, second)) or not first:
                self._refuse("a { that begins no number of times", at)
            least = int(first)
            most = least if not comma else int(second) if second else None
            self._at += len(inside) + 1
            if max(least, most or 0) > _MOST_TIMES or (most is not None and most < least):
                self._refuse(f"{{{inside}}}", at)
        else:
            return part
        self._take("?")  # as few as possible: the same texts
        if self._next() in ("*", "+", "?", "{"):
            self._refuse(f"{self._next()} after a repetition")
        if part[0] in ("ahead", "start", "end"):
            self._refuse("a repeated anchor", at)
        return ("times", part, least, most)

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


class _Builder:
    """Makes languages of what the parser read, from the end to the beginning, because of what looks ahead."""

    def __init__(self, languages: Languages) -> None:
        self._languages = languages

    def before(self, tree: Any, rest: int, is_start: bool | None) -> int:
        """The texts of `tree` followed by one of `rest`. is_start: whether they begin the text; None for perhaps."""
        languages, (kind, *inner) = self._languages, tree
        if kind == "any":
            return languages.any_of([self.before(part, rest, is_start) for part in inner[0]])
        if kind == "sequence":
            return self._sequence(inner[0], rest, is_start)
        if kind == "end":
            return languages.all_of([rest, languages.empty])
        if kind == "start":
            if is_start is None:
                raise PatternError(f"has ^ after something else (character {inner[0]}), which is not supported")
            return rest if is_start else languages.nothing
        if kind == "ahead":
            found = self.before(inner[0], languages.everything, is_start)
            return languages.all_of([languages.none_of(found) if inner[1] else found, rest])
        if kind == "times" and _has_anchor(inner[0]):
            part, least, most = inner
            if most is None or most > _MOST_UNROLLED:
                raise PatternError("repeats a group with an anchor in it, which is not supported")
            result = rest
            for n in range(most, 0, -1):
                longer = self.before(part, result, is_start if n == 1 else None)
                result = longer if n <= least else self._languages.any_of([longer, rest])
            return result
        return languages.sequence([self._plain(tree), rest])

    def _sequence(self, parts: list[Any], rest: int, is_start: bool | None) -> int:
        starts = list[bool | None]()
        for part in parts:
            starts.append(is_start)
            is_start = is_start if part[0] in ("ahead", "start", "end") else None
        for part, start in zip(reversed(parts), reversed(starts), strict=True):
            rest = self.before(part, rest, start)
        return rest

    def _plain(self, tree: Any) -> int:
        """The texts of a tree without anchors."""
        languages, (kind, *inner) = self._languages, tree
        if kind == "chars":
            return languages.one_of(inner[0])
        if kind == "times":
            return languages.times(self._plain(inner[0]), inner[1], inner[2])
        parts: Iterable[int] = [self._plain(part) for part in inner[0]]
        return languages.sequence(parts) if kind == "sequence" else languages.any_of(parts)


def _has_anchor(tree: Any) -> bool:
    kind, *inner = tree
    if kind in ("any", "sequence"):
        return any(map(_has_anchor, inner[0]))
    return kind in ("ahead", "start", "end") or (kind == "times" and _has_anchor(inner[0]))

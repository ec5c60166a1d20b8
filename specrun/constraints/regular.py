"""Regular languages: sets of texts that can be joined, intersected and taken away, written as rules of a grammar.
Characters are ranges of code points, as a grammar writes them in a JSON string.

A language is taken apart by Brzozowski's derivatives (J. ACM, 1964; Owens, Reppy and Turon, "Regular-expression
derivatives re-examined", 2009): what may follow once a character was read is a language again, and there are finitely
many. So every text is read in one way, and llama.cpp follows one state, whatever the expression looked like.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any

from specrun.constraints.rules import counted

Ranges = tuple[tuple[int, int], ...]  # code points from and to, in order, without overlaps

EVERY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # all characters; surrogates are halves of some
_ESCAPED = {0x22: '"', 0x5C: "\\\\", 8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}  # as JSON escapes them
_NOT_PLAIN: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F))


def union(*parts: Iterable[tuple[int, int]]) -> Ranges:
    """All characters of the parts."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(each for part in parts for each in part):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return tuple(result)


def without(ranges: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]]) -> Ranges:
    """The characters of `ranges` that are not in `taken`."""
    result = list(ranges)
    for first, last in taken:
        rest = [((a, min(b, first - 1)), (max(a, last + 1), b)) for a, b in result]
        result = [(a, b) for both in rest for a, b in both if a <= b]
    return tuple(result)


def json_characters(ranges: Ranges) -> str:
    """A GBNF expression for one of these characters in a JSON string. Rare control characters are only there alone."""
    if ranges == EVERY:
        return "char"
    plain = without(ranges, _NOT_PLAIN)
    letters = "".join(letter for code, letter in _ESCAPED.items() if any(a <= code <= b for a, b in ranges))
    ends = (_in_class(first) + (f"-{_in_class(last)}" if last > first else "") for first, last in plain)
    parts = [f"[{''.join(ends)}]"] if plain else []
    parts += [f'"\\\\" [{letters}]'] if letters else []
    if not parts:
        parts = [f'"\\\\u{code:04x}"' for first, last in ranges for code in range(first, last + 1)]
    return parts[0] if plain and len(parts) == 1 else f"({' | '.join(parts)})"


def _in_class(code: int) -> str:
    if code < 0x80:
        return chr(code) if chr(code).isalnum() else f"\\x{code:02X}"
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


_MOST_STATES = 1500  # rules of one language
_COMPARED_AT_ONCE = 8  # characters that cost as much as a language
MOST_WORK = 200_000  # languages that are joined and intersected on the way, a second's work


class TooManyRules(Exception):  # noqa: N818  (it is caught by who asked, and is no error of the program)
    """A language needs more rules than are worth it."""


class Languages:
    """Makes languages out of others. A language is a number; the same parts in the same way are the same number.

    work: what was done before. Methods raise TooManyRules where it becomes more than MOST_WORK.
    """

    def __init__(self, work: int = 0) -> None:
        self._parts: list[tuple[Any, ...]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._derivatives: dict[tuple[int, int], int] = {}
        self.work = work  # languages that were looked at, and pairs of them and a character
        self.nothing = self._number("class", ())  # no text
        self.empty = self._number("empty")  # the text without characters
        self.character = self._number("class", EVERY)
        self.everything = self._number("times", self.character, 0, None)

    def one_of(self, ranges: Ranges) -> int:
        """The texts of one of these characters."""
        return self._number("class", ranges)

    def literal(self, text: str) -> int:
        return self.sequence(self.one_of(((ord(char), ord(char)),)) for char in text)

    def sequence(self, parts: Iterable[int]) -> int:
        """A text of each part, one after the other."""
        result = self.empty
        for part in reversed(list(parts)):
            result = self._joined(part, result)
        return result

    def times(self, part: int, least: int, most: int | None) -> int:
        """So many texts of `part`, one after the other; None is any number."""
        if most == 0 or part in (self.nothing, self.empty):
            return self.nothing if part == self.nothing and least else self.empty
        least = 0 if self.has_empty(part) else least
        if (least, most) == (0, 1):
            return self.any_of([part, self.empty])
        return part if least == most == 1 else self._number("times", part, least, most)

    def any_of(self, parts: Iterable[int]) -> int:
        """The texts of all parts."""
        found = {each for part in parts for each in self._inner("any", part)} - {self.nothing}
        if self.everything in found:
            return self.everything
        classes = [part for part in found if self._parts[part][0] == "class"]
        if len(classes) > 1:
            found = found.difference(classes) | {self.one_of(union(*(self._parts[part][1] for part in classes)))}
        if self.empty in found and any(self.has_empty(part) for part in found - {self.empty}):
            found.discard(self.empty)
        return self._combined("any", found, self.nothing)

    def all_of(self, parts: Iterable[int]) -> int:
        """The texts that are in every part."""
        found = {each for part in parts for each in self._inner("all", part)} - {self.everything}
        if self.nothing in found:
            return self.nothing
        if self.empty in found:
            return self.empty if all(map(self.has_empty, found)) else self.nothing
        runs = [part for part in found if self._is_run(part)]
        every = next((part for part in runs if self._parts[part][1] == self.character), None)
        if every is not None and len(runs) > 1:
            other = next(part for part in runs if part != every)
            (_, one, least, most), (_, _, *others) = self._parts[other], self._parts[every]
            least = max(least, others[0])
            most = min((n for n in (most, others[1]) if n is not None), default=None)
            together = self.nothing if most is not None and least > most else self.times(one, least, most)
            return self.all_of([together, *found.difference([every, other])])
        return self._combined("all", found, self.everything)

    def none_of(self, part: int) -> int:
        """The texts that are not in `part`."""
        kind, *inner = self._parts[part]
        if kind == "not":
            return int(inner[0])
        return self.everything if part == self.nothing else self._number("not", part)

    def multiples(self, divisor: int, rest: int = 0, wanted: int = 0) -> int:
        """Digits, or none, after a number that leaves `rest` when divided, so that all together leave `wanted`."""
        return self._number("rest", divisor, rest, wanted)

    def has_empty(self, language: int) -> bool:
        """Whether the text without characters is among them."""
        kind, *inner = self._parts[language]
        if kind in ("any", "all"):
            return (any if kind == "any" else all)(map(self.has_empty, inner[0]))
        if kind == "join":
            return self.has_empty(inner[0]) and self.has_empty(inner[1])
        if kind == "not":
            return not self.has_empty(inner[0])
        if kind == "rest":
            return bool(inner[1] == inner[2])
        return kind == "empty" or (kind == "times" and inner[1] == 0)

    def after(self, language: int, code: int) -> int:
        """What may follow in texts of the language that begin with this character: their rests."""
        key = (language, code)
        if key not in self._derivatives:
            self._derivatives[key] = self._after(code, *self._parts[language])
        return self._derivatives[key]

    def rules(self, language: int, prefix: str) -> dict[str, str] | None:
        """Rules of a grammar for the language's texts in JSON, as a string has them between its quotes.

        The first rule, `prefix` and 0, is for a whole text. None if there is no text. Raises TooManyRules.
        """
        steps = self._steps(language)
        live = self._live(steps)
        if language not in live:
            return None
        names = {state: f"{prefix}{i}" for i, state in enumerate(live)}
        result: dict[str, str] = {}
        for state, name in names.items():
            if self._is_run(state):
                _, one, least, most = self._parts[state]
                result[name] = counted(json_characters(self._parts[one][1]), least, most)
                continue
            targets: dict[int, list[Ranges]] = {}
            for ranges, target in steps[state]:
                if target in live:
                    targets.setdefault(target, []).append(ranges)
            alternatives = [f"{json_characters(union(*ranges))} {names[to]}" for to, ranges in targets.items()]
            result[name] = " | ".join(alternatives + ['""'] * self.has_empty(state))
        return result

    def _after(self, code: int, kind: str, *inner: Any) -> int:
        if kind == "class":
            return self.empty if any(first <= code <= last for first, last in inner[0]) else self.nothing
        if kind == "join":
            rest = self._joined(self.after(inner[0], code), inner[1])
            return self.any_of([rest, self.after(inner[1], code)]) if self.has_empty(inner[0]) else rest
        if kind == "times":
            part, least, most = inner
            rest = self.times(part, max(least - 1, 0), None if most is None else most - 1)
            return self._joined(self.after(part, code), rest)
        if kind in ("any", "all"):
            return (self.any_of if kind == "any" else self.all_of)(self.after(part, code) for part in inner[0])
        if kind == "not":
            return self.none_of(self.after(inner[0], code))
        if kind == "rest" and ord("0") <= code <= ord("9"):
            return self.multiples(inner[0], (inner[1] * 10 + code - ord("0")) % inner[0], inner[2])
        return self.nothing

    def _number(self, *part: Any) -> int:
        if part not in self._numbers:
            self._numbers[part] = len(self._parts)
            self._parts.append(part)
        return self._numbers[part]

    def _joined(self, first: int, second: int) -> int:
        if self.nothing in (first, second):
            return self.nothing
        if self.empty in (first, second):
            return second if first == self.empty else first
        kind, *inner = self._parts[first]
        if kind == "join":
            return self._joined(inner[0], self._joined(inner[1], second))
        return self._number("join", first, second)

    def _inner(self, kind: str, part: int) -> Collection[int]:
        found = self._parts[part]
        inner = found[1] if found[0] == kind else (part,)
        self._spend(len(inner))
        return inner

    def _spend(self, work: int) -> None:
        self.work += work
        if self.work > MOST_WORK:
            raise TooManyRules

    def _combined(self, kind: str, parts: set[int], of_none: int) -> int:
        return next(iter(parts or {of_none})) if len(parts) < 2 else self._number(kind, frozenset(parts))

    def _alike(self) -> list[Ranges]:
        """All characters, those together that no language here tells apart."""
        classes = {part[1] for part in self._parts if part[0] == "class"}
        if any(part[0] == "rest" for part in self._parts):
            classes |= {((code, code),) for code in range(ord("0"), ord("9") + 1)}
        edges = sorted({edge for ranges in classes for first, last in ranges for edge in (first, last + 1)})
        self._spend(len(edges) * len(classes) // _COMPARED_AT_ONCE**2)
        groups: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
        for first, behind in pairwise(edges):
            key = tuple(any(a <= first <= b for a, b in ranges) for ranges in classes)
            groups.setdefault(key, []).append((first, behind - 1))
        return [inside for group in groups.values() if (inside := without(group, ((0xD800, 0xDFFF),)))]

    def _is_run(self, language: int) -> bool:
        """Whether its texts are a number of characters of a class, which llama.cpp counts by itself."""
        kind, *inner = self._parts[language]
        return kind == "times" and self._parts[inner[0]][0] == "class"

    def _steps(self, language: int) -> dict[int, list[tuple[Ranges, int]]]:
        """For each language that is reached from this one: the characters that may follow, and where they lead."""
        alike, result, waiting = self._alike(), dict[int, list[tuple[Ranges, int]]](), [language]
        while waiting:
            state = waiting.pop()
            if state not in result:
                if len(result) >= _MOST_STATES:
                    raise TooManyRules
                self._spend(len(alike) // _COMPARED_AT_ONCE)
                found = [(ranges, self.after(state, ranges[0][0])) for ranges in alike if not self._is_run(state)]
                result[state] = [(ranges, target) for ranges, target in found if target != self.nothing]
                waiting += [target for _, target in result[state]]
        return result

    def _live(self, steps: dict[int, list[tuple[Ranges, int]]]) -> dict[int, None]:
        """The languages that have a text at all, in a settled order."""
        before: dict[int, list[int]] = {}
        for state, found in steps.items():
            for _, target in found:
                before.setdefault(target, []).append(state)
        waiting = [state for state in steps if self.has_empty(state) or self._is_run(state)]
        live = set[int]()
        while waiting:
            state = waiting.pop()
            if state not in live:
                live.add(state)
                waiting += before.get(state, [])
        return {state: None for state in steps if state in live}

"""The rules of a grammar in GBNF by name, the rules of JSON that all of them may use, and bounds of any grammar; and
where a grammar begins to apply, as a model may reason or talk before it writes what must be well-formed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from specrun.errors import UsageError

_MOST_SINGLE = 20  # repetitions that are counted one by one; llama.cpp makes rules for each
MOST_CHARACTERS = 2**20  # of a grammar, for which llama.cpp needs a second and 300 MB
_MOST_NESTED, _MOST_RULES = 1000, 10_000  # llama.cpp's parser recurses and would overflow the stack far beyond these
_LONGEST_NUMBER = 19  # digits that surely fit the 64 bits of llama.cpp's parser
# Literals, classes of characters, names of tokens and comments, in which no sign means anything to the parser.
_PLAIN = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|<[^>]*>?|#[^\r\n]*', re.DOTALL)
_REPETITION = re.compile(r"\{\s*([0-9]+)\s*(?:,\s*([0-9]+)\s*)?\}")
_CODE = r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|[^\\]"
_IN_CLASS = re.compile(rf"({_CODE})(?:-(?!\])({_CODE}))?", re.DOTALL)  # a character or a range
# A group that may be missing, and the name of a rule, in an expression without literals and classes.
_OPTIONAL = re.compile(r"\([^()]*\)(?:[?*]|\{0,[0-9]*\})")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_MOST_IN_ANY_ORDER = 6  # different items of an array; so many have 64 subsets, and each takes rules

# No escape may write a surrogate (\ud800 to \udfff), because that is only half a character.
_ESCAPE = r'"\\" (["\\bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))'
_PRIMITIVES = {
    "ws": r'| " " | "\n" [ \t]{0,20}',
    "char": rf'[^"\\\x7F\x00-\x1F] | {_ESCAPE}',
    "string": r'"\"" char* "\""',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,14})',
    "number": 'integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "object": '"{" ws (string ":" ws value ("," ws string ":" ws value)* ws)? "}"',
    "array": '"[" ws (value ("," ws value)* ws)? "]"',
    "value": "object | array | string | number | boolean | null",
}


def grammar_text(root: str, rules: Mapping[str, str]) -> str:
    """The grammar with this expression as its root, these rules, and the rules of JSON."""
    return "\n".join(f"{name} ::= {rule}" for name, rule in ({"root": root} | dict(rules) | _PRIMITIVES).items()) + "\n"


def json_literal(value: Any) -> str:
    """The JSON text of `value` as a GBNF literal."""
    return '"' + json.dumps(value, ensure_ascii=False).replace("\\", "\\\\").replace('"', '\\"') + '"'


def repeated(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"


def counted(one: str, least: int, most: int | None) -> str:
    """A GBNF expression for `least` to `most` times `one`, a rule or a class, counted by powers of ten."""
    exactly = " ".join(f"{_power(one, i)}{{{n}}}" for i, n in _digits(least)) if least > _MOST_SINGLE else ""
    if not exactly and (most is None or most <= _MOST_SINGLE):
        return f"{one}{repeated(least, most)}"
    if not exactly and least:
        exactly = f"{one}{{{least}}}"
    return f"{exactly} {f'{one}*' if most is None else _up_to(one, most - least)}".strip()


def _up_to(one: str, most: int) -> str:
    if most <= _MOST_SINGLE:
        return f"{one}{repeated(0, most)}"
    exponent, first = _digits(most)[0]
    fewer = [f"{_power(one, exponent)}{{0,{first - 1}}}"] if first > 1 else []
    fewer += [f"{_power(one, i)}{{0,9}}" for i in range(exponent - 1, -1, -1)]
    return f"({' '.join(fewer)} | {_power(one, exponent)}{{{first}}} {_up_to(one, most - first * 10**exponent)})"


def _digits(number: int) -> list[tuple[int, int]]:
    """The exponents of ten and the digits that are not 0, from the first on."""
    text = str(number)
    return [(len(text) - i - 1, int(digit)) for i, digit in enumerate(text) if digit != "0"]


def _power(one: str, exponent: int) -> str:
    return f"({_power(one, exponent - 1)}{{10}})" if exponent else one


class Work:
    """What the patterns, formats and bounds of one or several schemas cost, by the names of their rules, and how many
    characters their rules have, so that it is bounded for all together.
    """

    def __init__(self) -> None:
        self.costs: dict[str, int] = {}
        self._lengths: dict[str, int] = {}  # of rules by name
        self._n_characters = 0  # of all rules

    def write(self, name: str, n_characters: int) -> None:
        """Count the characters of a rule; several schemas may have the same one. Raises UsageError as `check`."""
        self._n_characters += n_characters - self._lengths.get(name, 0)
        self._lengths[name] = n_characters
        self.check()

    def check(self) -> None:
        """Raise UsageError if all rules together are too large."""
        if self._n_characters > MOST_CHARACTERS or len(self._lengths) > _MOST_RULES:
            limit = f"{MOST_CHARACTERS} characters or {_MOST_RULES} rules"
            raise UsageError(f"the schema makes a grammar of more than {limit}; give a smaller schema")


class Rules:
    """Collects the rules of a grammar by name, in `named`. prefix: begins the names of those that have no other.

    Raises UsageError where they and those before are too large together.
    """

    def __init__(self, prefix: str, work: Work) -> None:
        work.check()
        self.named: dict[str, str] = {}
        self.work = work
        self._prefix = prefix

    def put(self, name: str, rule: str) -> None:
        """Set a rule."""
        self.named[name] = rule
        self.work.write(name, len(rule))

    def add(self, alternatives: Iterable[str]) -> str:
        """Add a rule with these alternatives and return its name; a single rule name is returned as it is."""
        expressions = list(alternatives)
        if len(expressions) == 1 and (expressions[0] in self.named or expressions[0] in _PRIMITIVES):
            return expressions[0]
        name = f"{self._prefix}r{len(self.named)}"
        self.put(name, " | ".join(expressions))
        return name

    def reserve(self) -> str:
        """A name whose rule is set later, because it may contain itself."""
        name = f"{self._prefix}r{len(self.named)}"
        self.named[name] = ""
        return name

    def endless(self) -> set[str]:
        """The rules that no text fits, because each alternative contains one of them again."""
        alternatives = {name: [set(_NAME.findall(part)) for part in _needed(rule)] for name, rule in self.named.items()}
        users: dict[str, list[str]] = {}
        for name, several in alternatives.items():
            for used in set[str]().union(*several):
                users.setdefault(used, []).append(name)
        ending, waiting = {*_PRIMITIVES}, list(self.named)
        while waiting:
            name = waiting.pop()
            if name not in ending and any(names <= ending for names in alternatives[name]):
                ending.add(name)
                waiting += users.get(name, [])
        return self.named.keys() - ending

    def in_order(self, parts: Sequence[tuple[str, bool]], after: str = '""') -> str:
        """Add a rule for `parts`, given as (expression, whether it is required), with commas between them.

        Parts that are not required may be missing. `after` is the expression after the last part.
        """
        first = '""'
        for part, is_required in reversed(parts):
            name = self.add([part])
            first = self.add([f"{name} {after}"] if is_required else [f"{name} {after}", first])
            after = self.add([f'"," ws {name} {after}' if is_required else f'("," ws {name})? {after}'])
        return first

    def different(self, items: Sequence[str], least: int, most: int) -> str:
        """Add a rule for `least` to `most` of the items with commas between, none of them twice.

        They come in any order, or in the given one where there are more than six.
        """
        known: dict[tuple[tuple[str, ...], int], str] = {}

        def after(rest: tuple[str, ...], n: int) -> str:
            if most >= len(items):
                n = min(n, max(least, 1))  # where the count does not matter any more, its rules are the same
            key = (rest, n)
            if key not in known:
                comma, alternatives = '"," ws ' if n else "", ['""'] if n >= least else []
                for i, item in enumerate(rest if n < most else ()):
                    others = rest[i + 1 :] if len(items) > _MOST_IN_ANY_ORDER else rest[:i] + rest[i + 1 :]
                    if n + 1 + len(others) >= least:
                        alternatives.append(f"{comma}{item} {after(others, n + 1)}")
                known[key] = self.add(alternatives)
            return known[key]

        return after(tuple(self.add([item]) for item in items), 0)


def _needed(rule: str) -> list[str]:
    """The alternatives of a rule, without literals and without what may be missing."""
    before, text = "", _PLAIN.sub(" ", rule)
    while before != text:
        before, text = text, _OPTIONAL.sub(" ", text)
    return text.split("|")


def check_bounds(gbnf: str) -> None:
    """Raise UsageError for a grammar whose size llama.cpp's parser takes all memory for, or would crash at, and for
    repetitions and ranges of characters that are impossible.
    """
    signs = _PLAIN.sub(lambda plain: re.sub(r"[^\n]", " ", plain[0]), gbnf)
    deepest = max(accumulate((char == "(") - (char == ")") for char in signs), default=0)
    if deepest > _MOST_NESTED or signs.count("::=") > _MOST_RULES:
        raise UsageError(f"the grammar has more than {_MOST_NESTED} groups in each other, or {_MOST_RULES} rules")
    for found in _REPETITION.finditer(signs):
        least, most = found[1], found[2] or found[1]
        line = gbnf[: found.start()].count("\n") + 1
        if max(len(least), len(most)) > _LONGEST_NUMBER:
            raise UsageError(f"the grammar asks for more repetitions than llama.cpp can count (line {line})")
        if int(least) > int(most):  # llama.cpp would make rules without end
            asked = f"at least {int(least)} and at most {int(most)} repetitions"
            raise UsageError(f"the grammar asks for {asked} (line {line}); swap the numbers")
    for plain in _PLAIN.finditer(gbnf):
        if plain[0].startswith("["):  # llama.cpp takes a range from z to a, which no text fits
            for found in _IN_CLASS.finditer(plain[0], 1 + plain[0].startswith("[^")):
                if found[2] and _code(found[1]) > _code(found[2]):
                    line = gbnf[: plain.start()].count("\n") + 1
                    raise UsageError(f"the grammar has the range {found[0]} (line {line}); swap its ends")


def _code(character: str) -> int:
    """The code point of a character as a class of GBNF has it."""
    if character[0] != "\\":
        return ord(character)
    if len(character) > 2:
        return int(character[2:], 16)
    return ord({"t": "\t", "r": "\r", "n": "\n"}.get(character[1], character[1]))


# Before the reasoning, in it, after it, and where the grammar applies.
_BEGINNING, _REASONING, _FREE, _BOUND = range(4)


@dataclass(frozen=True)
class Progress:
    """How far a text has come. held: bytes at its end that may be the beginning of a marker."""

    stage: int
    held: bytes = b""

    @property
    def is_reached(self) -> bool:
        """Whether the grammar applies from here on."""
        return self.stage == _BOUND


@dataclass(frozen=True)
class Trigger:
    """Where a grammar begins to apply: after `text`, or after one of `others`, which end as it does."""

    text: str  # if empty, the grammar applies at once, or directly after the reasoning that the prompt began
    reasoning: tuple[str, str] | None = None  # the markers around reasoning at the beginning, where `text` is ignored
    is_open: bool = False  # whether the prompt ended within the reasoning
    others: tuple[str, ...] = ()

    @property
    def start(self) -> Progress:
        """The progress of an empty text."""
        if self.is_open:
            return Progress(_REASONING)
        return Progress(_BOUND if not self.text else _BEGINNING if self.reasoning else _FREE)

    @property
    def last_byte(self) -> int:
        """The byte that completes the trigger."""
        return (self.text or (self.reasoning or ("", ""))[1]).encode()[-1]

    def after(self, progress: Progress, data: bytes) -> tuple[Progress, bytes]:
        """The progress after further bytes, and the bytes that are after the trigger, if it was reached."""
        stage, data = progress.stage, progress.held + data
        opens, closes = (marker.encode() for marker in self.reasoning or ("", ""))
        if stage == _BEGINNING:
            begun = data.lstrip()
            if len(begun) < len(opens) and opens.startswith(begun):
                return Progress(stage, data), b""
            is_reasoning = begun.startswith(opens)
            stage, data = (_REASONING, begun[len(opens) :]) if is_reasoning else (_FREE, data)
        while stage in (_REASONING, _FREE):
            markers = [closes] if stage == _REASONING else [text.encode() for text in (self.text, *self.others)]
            at, marker = min(((at, marker) for marker in markers if (at := data.find(marker)) >= 0), default=(-1, b""))
            if at < 0:  # the marker may begin at the end
                return Progress(stage, data[max(len(data) - max(map(len, markers)) + 1, 0) :]), b""
            stage, data = (_FREE if stage == _REASONING and self.text else _BOUND), data[at + len(marker) :]
        return Progress(stage), data

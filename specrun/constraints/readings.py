"""What references in a schema name, and a bound of the ways in which a text can be read by the schemas that strangers
send.

llama.cpp follows every way in which the text so far can be read. Alternatives that begin alike double the ways, and
where they contain themselves, every level of nesting doubles them again, until a token takes hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from specrun.constraints.keywords import COMBINING, KEYWORDS
from specrun.errors import UsageError

_MOST_DIGITS = 9  # of an index in a pointer
_MOST_SEARCHED = 100_000  # schemas in which an $anchor is looked for


def pointed_at(root: Any, pointer: str) -> Any:
    """The part of `root` that a pointer beginning with #, or # and an `$anchor`, names; None if there is none."""
    if pointer != "#" and not pointer.startswith("#/"):
        return _anchored(root, pointer[1:]) if pointer.startswith("#") else None
    value = root
    for part in unquote(pointer).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and key.isdecimal() and len(key) <= _MOST_DIGITS and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return None
    return value


def _anchored(root: Any, name: str) -> Any:
    waiting, n_seen = [root], 0
    while waiting and n_seen < _MOST_SEARCHED:
        value, n_seen = waiting.pop(), n_seen + 1
        if isinstance(value, dict) and name in (value.get("$anchor"), value.get("$dynamicAnchor")):
            return value
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
    return None


MOST_READINGS = 64
# Schemas within a schema, alternatives, each as often as references lead to it, and the items that arrays may have, for
# each of which llama.cpp makes rules.
_MOST = {"parts": 5000, "alternatives together": 50_000, "items together": 20_000}
_DEEPEST = 64
_DEEPEST_BEGINNING = 4  # alternatives in alternatives that are told apart

_BOUNDS = ("minItems", "maxItems", "minProperties", "maxProperties")


def check_readings(schema: Any) -> None:
    """Raises UsageError if `schema`, which may be anything, is too large or lets a text be read in too many ways."""
    if _Walk(schema).readings(schema, 0) > MOST_READINGS:
        raise UsageError(
            f"a text can be read by the schema in more than {MOST_READINGS} ways; let the alternatives of anyOf and "
            "oneOf begin differently, for instance with a required first property that is a const"
        )


class _Walk:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._counts = dict.fromkeys(_MOST, 0.0)
        self._known: dict[str, int] = {}  # readings by reference
        self._open: set[str] = set()  # references that are being looked at
        self._recursive: set[str] = set()  # references that were met within themselves
        self._reached: dict[str, set[str]] = {}  # the same, by the reference that led there

    def readings(self, schema: Any, depth: int) -> int:
        """An upper bound of the ways that a text can be in the middle of `schema`."""
        self._count("parts")
        if depth > _DEEPEST:
            raise UsageError(f"the schema is nested more than {_DEEPEST} times; split it with $ref")
        if not isinstance(schema, dict):
            return 1
        bounds = (schema[key] for key in _BOUNDS if isinstance(schema.get(key), int | float))
        self._count("items together", max(bounds, default=0))
        if isinstance(schema.get("$ref"), str):
            return self._of_reference(schema["$ref"], depth)
        if alternatives := _alternatives(schema):
            groups: dict[Any, list[int]] = {}
            n_recursive: dict[Any, int] = {}
            for i, alternative in enumerate(alternatives):
                before, self._recursive = self._recursive, set()
                n = self.readings(alternative, depth + 1)
                for beginning in self._beginnings(alternative, i, _DEEPEST_BEGINNING):
                    groups.setdefault(beginning, []).append(n)
                    n_recursive[beginning] = n_recursive.get(beginning, 0) + bool(self._recursive & self._open)
                self._recursive |= before
            if max(n_recursive.values(), default=0) > 1:
                return MOST_READINGS + 1  # twice as many in each level, without end
            return max((sum(ways) for ways in groups.values()), default=1)
        return max((self.readings(inner, depth + 1) for inner in _inner(schema)), default=1)

    def _count(self, what: str, n: float = 1) -> None:
        self._counts[what] += n
        if self._counts[what] > _MOST[what]:
            raise UsageError(f"the schema has more than {_MOST[what]} {what}; give a smaller one")

    def _beginnings(self, schema: Any, i: int, depth: int) -> set[Any]:
        """What the texts of alternative `i` begin with. Alternatives with different beginnings have different texts."""
        self._count("alternatives together")
        schema = self._followed(schema)
        if not isinstance(schema, dict) or not depth:
            return {*KEYWORDS}
        if alternatives := _alternatives(schema):
            return {one for part in alternatives for one in self._beginnings(part, i, depth - 1)}
        if "const" in schema or "enum" in schema:
            return {("constant", i)}  # it ends where it is told apart; nothing is nested in it
        kinds = schema.get("type", list(KEYWORDS))
        named = {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)}
        return named - {"object"} | ({*_object_beginnings(schema)} if "object" in named else set())

    def _of_reference(self, pointer: str, depth: int) -> int:
        if pointer in self._open:
            self._recursive.add(pointer)
            return 1
        if pointer not in self._known:
            before, self._recursive = self._recursive, set()
            self._open.add(pointer)
            self._known[pointer] = self.readings(pointed_at(self._root, pointer), depth + 1)
            self._open.discard(pointer)
            self._reached[pointer] = self._recursive
            self._recursive = before
        self._recursive |= self._reached[pointer]
        return self._known[pointer]

    def _followed(self, schema: Any) -> Any:
        for _ in range(_DEEPEST):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            schema = pointed_at(self._root, schema["$ref"])
        return None


def _alternatives(schema: Mapping[str, Any]) -> list[Any]:
    """The schemas that `schema` combines; empty if it combines none."""
    return next((schema[key] for key in COMBINING if isinstance(schema.get(key), list)), [])


def _inner(schema: Mapping[str, Any]) -> Iterable[Any]:
    """The schemas of the values in an object or array."""
    properties, leading = schema.get("properties"), schema.get("prefixItems")
    return [
        *(properties.values() if isinstance(properties, dict) else ()),
        *(leading if isinstance(leading, list) else ()),
        schema.get("items"),
        schema.get("additionalProperties"),
        schema.get("propertyNames"),
        *(patterns.values() if isinstance(patterns := schema.get("patternProperties"), dict) else ()),
    ]


def _object_beginnings(schema: Mapping[str, Any]) -> Iterable[Any]:
    """What an object can begin with. A constant as its first value tells it from other objects."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not properties or not isinstance(required, list):
        return ["object"]
    name, first = next(iter(properties.items()))
    if name not in required or not isinstance(first, dict):
        return ["object"]
    values = [first["const"]] if "const" in first else first.get("enum")
    return [("object", name, str(value)) for value in values] if isinstance(values, list) else ["object"]

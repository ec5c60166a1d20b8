"""The language of JSON Schema: keywords that are supported or refused, types, equal values, schemas as one, what
references name, and a bound of the ways in which a text can be read by the schemas that strangers send.

llama.cpp follows every way in which the text so far can be read. Alternatives that begin alike double the ways, and
where they contain themselves, every level of nesting doubles them again, until a token takes hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

from specrun.errors import UsageError

# Keywords that do not restrict which texts are valid. (`format` may; scalars.py handles it for strings.)
ANNOTATIONS = {
    *("$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default"),
    *("examples", "example", "deprecated", "readOnly", "writeOnly", "format"),
    *("contentEncoding", "contentMediaType", "contentSchema"),
    "discriminator",  # OpenAPI's hint, which of the schemas in oneOf it is
}
# Keywords whose value is another schema or a list of schemas for the same place.
COMBINING = ("$ref", "anyOf", "oneOf", "allOf")
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
# The supported keywords of each type. A keyword of one type does not restrict values of another type.
KEYWORDS: dict[str, set[str]] = {
    "object": {
        *("properties", "required", "additionalProperties", "propertyNames", "patternProperties"),
        *("minProperties", "maxProperties"),
    },
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern"},
    "integer": BOUNDS | {"multipleOf"},
    "number": BOUNDS | {"multipleOf"},
    "boolean": set(),
    "null": set(),
}
# The keywords of each type that cannot be expressed.
REFUSED: dict[str, set[str]] = {
    "object": {"dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"},
    "array": {"contains", "minContains", "maxContains", "unevaluatedItems", "additionalItems"},
    **{kind: set() for kind in ("string", "integer", "number", "boolean", "null")},
}
# Keywords that mean less, or something else, without others of the same schema.
_TIED = {"additionalProperties", "patternProperties", "propertyNames", "items", "prefixItems", *REFUSED["object"]}


def is_of_type(value: Any, kind: str) -> bool:
    """Whether a parsed JSON value has the JSON Schema type `kind`."""
    if kind in ("integer", "number"):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and (kind == "number" or value == int(value))
    types: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, types[kind])


def whole(value: Any) -> Any:
    """The integer that a number is: 5.0 is one in a schema. Anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def restricting(schema: Mapping[str, Any]) -> set[str]:
    """The keywords of a schema that are no annotations."""
    return {key for key in schema if key not in ANNOTATIONS and not key.startswith("x-")}


def is_nothing(schema: Any) -> bool:
    """Whether a schema is one of the usual ways to say that nothing is allowed."""
    return schema is False or (isinstance(schema, dict) and schema.get("not") in ({}, True) and "not" in schema)


def identity(value: Any) -> Any:
    """What is the same for JSON values that are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, list):
        return ("array", *map(identity, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, identity(inner)) for name, inner in value.items()))
    return (isinstance(value, bool), value)


def types_of(schema: Mapping[str, Any], keys: set[str], at: str) -> list[str]:
    """The types that a schema allows: the types it names, or the type that its keywords belong to."""
    unknown = keys - {"type"}.union(*KEYWORDS.values(), *REFUSED.values())
    if unknown:
        refuse(at, f"{min(unknown)} is not supported")
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    else:
        types = [kind for kind in KEYWORDS if kind != "integer" and keys & (KEYWORDS[kind] | REFUSED[kind])]
        if len(types) > 1:
            refuse(at, "it needs a type")
    if not types or any(not isinstance(kind, str) or kind not in KEYWORDS for kind in types):
        refuse(at, f"type must be one of {', '.join(KEYWORDS)}, or a list of them")
    return types


def merged(schemas: list[dict[str, Any]], at: str) -> dict[str, Any]:
    """The schema that allows what all of them allow. Raises UsageError where that takes more than joining keywords."""
    result: dict[str, Any] = {}
    for schema in schemas:
        keys = restricting(schema) | ({"format"} & schema.keys())
        tied = (_TIED & keys) if result else set()
        tied |= _TIED & result.keys()
        if result and tied and any(schema.get(key) != result.get(key) for key in tied | {"properties"}):
            refuse(at, f"{min(tied)} in one of several schemas is not supported; write them as one")
        for key in keys:
            value = schema[key]
            result[key] = _both(key, result[key], value, at) if key in result else value
    return result


def _both(key: str, first: Any, second: Any, at: str) -> Any:
    if first == second:
        return first
    if key == "pattern" or (key == "required" and isinstance(first, list) and isinstance(second, list)):
        every = [one for part in (first, second) for one in (part if isinstance(part, list) else [part])]
        return list({identity(one): one for one in every}.values())
    if key == "properties" and isinstance(first, dict) and isinstance(second, dict):
        same = first.keys() & second.keys()
        return first | second | {name: {"allOf": [*_parts(first[name]), *_parts(second[name])]} for name in same}
    if isinstance(first, int | float) and isinstance(second, int | float):
        if key.startswith(("min", "exclusiveMin")):
            return max(first, second)
        if key.startswith(("max", "exclusiveMax")):
            return min(first, second)
    return refuse(at, f"{key} in several schemas is not supported; write them as one")


def _parts(schema: Any) -> list[Any]:
    is_several = isinstance(schema, dict) and schema.keys() == {"allOf"} and isinstance(schema["allOf"], list)
    return schema["allOf"] if is_several else [schema]


def tag_of(schema: Mapping[str, Any]) -> str | None:
    """The property by which a discriminator tells alternatives apart. pydantic needs it even where it has a default."""
    discriminator = schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
    return name if isinstance(name, str) else None


def check_alone(main: str, others: set[str], at: str) -> None:
    """Raises UsageError if there are other keywords beside this one."""
    if others:
        refuse(at, f"{min(others)} beside {main} is not supported")


def refuse(at: str, why: str) -> NoReturn:
    raise UsageError(f"the schema at {' '.join(at.split())}: {why}")


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
    if _Walk(schema).ways(schema, 0)[0] > MOST_READINGS:
        raise UsageError(
            f"a text can be read by the schema in more than {MOST_READINGS} ways; let the alternatives of anyOf and "
            "oneOf begin differently, for instance with a required first property that is a const"
        )


_Ways = tuple[int, frozenset[str]]


class _Walk:
    """Counts the ways in which texts can be read by the parts of a schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._counts = dict.fromkeys(_MOST, 0.0)
        self._known: dict[str, _Ways] = {}  # by reference
        self._open: set[str] = set()  # references that are being looked at

    def ways(self, schema: Any, depth: int) -> _Ways:
        """An upper bound of the ways that a text can be in the middle of `schema`, and the references that were met
        within themselves there.
        """
        self._count("parts")
        if depth > _DEEPEST:
            raise UsageError(f"the schema is nested more than {_DEEPEST} times; split it with $ref")
        if not isinstance(schema, dict):
            return 1, frozenset()
        bounds = (schema[key] for key in _BOUNDS if isinstance(schema.get(key), int | float))
        self._count("items together", max(bounds, default=0))
        if isinstance(schema.get("$ref"), str):
            return self._of_reference(schema["$ref"], depth)
        alternatives, groups, met = _alternatives(schema), dict[Any, list[_Ways]](), set[str]()
        for i, part in enumerate(alternatives or _inner(schema)):
            ways = self.ways(part, depth + 1)
            met |= ways[1]
            # Of the values in an object or array only one is being written, so each is a group of its own.
            for beginning in self._beginnings(part, i, _DEEPEST_BEGINNING) if alternatives else [i]:
                groups.setdefault(beginning, []).append(ways)
        if any(sum(bool(within & self._open) for _, within in group) > 1 for group in groups.values()):
            return MOST_READINGS + 1, frozenset(met)  # twice as many in each level, without end
        return max((sum(n for n, _ in group) for group in groups.values()), default=1), frozenset(met)

    def _of_reference(self, pointer: str, depth: int) -> _Ways:
        if pointer in self._open:
            return 1, frozenset([pointer])
        if pointer not in self._known:
            self._open.add(pointer)
            self._known[pointer] = self.ways(pointed_at(self._root, pointer), depth + 1)
            self._open.discard(pointer)
        return self._known[pointer]

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

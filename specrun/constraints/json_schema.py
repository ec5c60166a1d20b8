"""Converts a JSON schema to a GBNF grammar. Every text of the grammar is JSON that is valid by the schema.

A schema that the grammar cannot express is refused, never simplified silently. The grammar may allow less than the
schema: properties come in the schema's order, properties that the schema does not name occur only if it names none,
numbers have up to 15 digits, and white space is at most a line break with 20 blanks. `oneOf` is treated as `anyOf`.
`format` is enforced for dates, times and UUIDs and ignored otherwise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from specrun.constraints.integers import MAX_DIGITS, integer_between
from specrun.constraints.keywords import ANNOTATIONS, COMBINING, KEYWORDS, REFUSED, is_of_type, pointed_at
from specrun.errors import UsageError

_MAX_REPEATED = 1000  # llama.cpp treats a repetition of more than 2000 times as unbounded

_DAY_31 = '("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
_DAY_30 = '("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30")'
_DATE = f'[0-9]{{4}} "-" ({_DAY_31} | {_DAY_30} | "02-" ("0" [1-9] | [12] [0-9]))'
_HOUR = '([01] [0-9] | "2" [0-3])'
_TIME = f'{_HOUR} ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{{3}})? ("Z" | [+-] {_HOUR} ":" [0-5] [0-9])'
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": ' "-" '.join(f"[0-9a-fA-F]{{{n}}}" for n in (8, 4, 4, 4, 12)),
}

# No escape may write a surrogate (\ud800 to \udfff), because that is only half a character.
_ESCAPE = r'"\\" (["\\bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))'
_PRIMITIVES = {
    "ws": r'| " " | "\n" [ \t]{0,20}',
    "char": rf'[^"\\\x7F\x00-\x1F] | {_ESCAPE}',
    "string": r'"\"" char* "\""',
    "integer": f'"-"? ("0" | [1-9] [0-9]{{0,{MAX_DIGITS - 1}}})',
    "number": f'integer ("." [0-9]{{1,{MAX_DIGITS}}})? ([eE] [-+]? [0-9]{{1,2}})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "object": '"{" ws (string ":" ws value ("," ws string ":" ws value)* ws)? "}"',
    "array": '"[" ws (value ("," ws value)* ws)? "]"',
    "value": "object | array | string | number | boolean | null",
}


def schema_to_gbnf(schema: Any) -> str:
    """The grammar of a parsed JSON schema (a dict or bool). Raises UsageError if the schema cannot be expressed."""
    return grammar_text(*schema_rules(schema))


def schema_rules(schema: Any, prefix: str = "") -> tuple[str, dict[str, str]]:
    """A schema's rule, and the rules that it needs by name; `prefix` begins their names. Raises UsageError."""
    converter = _Converter(schema, prefix)
    return converter.rule(schema, "#"), converter.rules


def grammar_text(root: str, rules: Mapping[str, str]) -> str:
    """The grammar with this expression as its root, these rules, and the rules of JSON."""
    return "\n".join(f"{name} ::= {rule}" for name, rule in ({"root": root} | dict(rules) | _PRIMITIVES).items()) + "\n"


class _Converter:
    """Collects the grammar's rules, one for each part of the schema, in `rules` by name."""

    def __init__(self, schema: Any, prefix: str) -> None:
        self.rules: dict[str, str] = {}
        self._schema, self._prefix = schema, prefix
        self._references: dict[str, str] = {}

    def rule(self, schema: Any, at: str) -> str:
        """Add a rule for `schema` and return its name. `at` is the schema's JSON pointer, for messages."""
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, dict):
            _refuse(at, "false allows no value" if schema is False else "a schema must be an object")
        keys = {key for key in schema if key not in ANNOTATIONS and not key.startswith("x-")}
        combining = next((key for key in COMBINING if key in keys), None)
        if combining:
            _check_alone(combining, keys - {combining}, at)
            return self._combined(combining, schema[combining], f"{at}/{combining}")
        if "const" in keys or "enum" in keys:
            _check_alone("enum", keys - {"const", "enum", "type"}, at)
            return self._constants(schema, at)
        types = _types(schema, keys, at)
        return self._named(self._of_type(kind, schema, keys, at) for kind in types) if keys else "value"

    def _named(self, alternatives: Iterable[str]) -> str:
        """Add a rule with these alternatives and return its name; a single rule name is returned as it is."""
        expressions = list(alternatives)
        if len(expressions) == 1 and (expressions[0] in self.rules or expressions[0] in _PRIMITIVES):
            return expressions[0]
        name = f"{self._prefix}r{len(self.rules)}"
        self.rules[name] = " | ".join(expressions)
        return name

    def _combined(self, keyword: str, value: Any, at: str) -> str:
        if keyword == "$ref":
            return self._referred(value, at)
        if not isinstance(value, list) or not value:
            _refuse(at, "it must be a list of schemas")
        if keyword == "allOf" and len(value) > 1:
            _refuse(at, "allOf with several schemas is not supported; write them as one")
        return self._named([self.rule(schema, f"{at}/{i}") for i, schema in enumerate(value)])

    def _referred(self, pointer: Any, at: str) -> str:
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            _refuse(at, f"{pointer} is not in this file; only #/... is supported")
        if pointer not in self._references:
            schema = pointed_at(self._schema, pointer)
            if schema is None:
                _refuse(at, f"there is no {pointer}")
            # The name is stored before the schema is converted, because the schema may refer to itself.
            name = self._references[pointer] = f"{self._prefix}ref{len(self._references)}"
            self.rules[name] = self.rule(schema, pointer)
        return self._references[pointer]

    def _constants(self, schema: Mapping[str, Any], at: str) -> str:
        values = schema.get("enum", [schema.get("const")])
        if not isinstance(values, list):
            _refuse(at, "enum must be a list")
        if "const" in schema:
            values = [value for value in values if value == schema["const"]]
        if "type" in schema:
            kinds = _types(schema, {"type"}, at)
            values = [value for value in values if any(is_of_type(value, kind) for kind in kinds)]
        if not values:
            _refuse(at, "no value is allowed")
        return self._named(dict.fromkeys(json_literal(value) for value in values))

    def _of_type(self, kind: str, schema: Mapping[str, Any], keys: set[str], at: str) -> str:
        """A GBNF expression for values of one type; only the type's name if no keyword restricts it."""
        for key in sorted(REFUSED[kind] & keys):
            if schema[key] is not False:
                _refuse(at, f"{key} is not supported for type {kind}")
        if kind == "string":  # `format` may restrict it, which is no keyword
            return self._string(schema, at)
        makers = {"object": self._object, "array": self._array, "integer": self._integer}
        return makers[kind](schema, at) if keys & KEYWORDS[kind] else kind

    def _string(self, schema: Mapping[str, Any], at: str) -> str:
        least, most = _counts(schema, "minLength", "maxLength", at)
        if least or most is not None:
            return rf'"\"" char{_repeated(least, most)} "\""'
        form = schema.get("format")
        return rf'"\"" {_FORMATS[form]} "\""' if isinstance(form, str) and form in _FORMATS else "string"

    def _integer(self, schema: Mapping[str, Any], at: str) -> str:
        bounds = {key: schema[key] for key in KEYWORDS["integer"] if key in schema}
        for key, value in bounds.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                _refuse(at, f"{key} must be a number")
        lows = [math.ceil(bounds["minimum"])] if "minimum" in bounds else []
        lows += [math.floor(bounds["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in bounds else []
        highs = [math.floor(bounds["maximum"])] if "maximum" in bounds else []
        highs += [math.ceil(bounds["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in bounds else []
        between = integer_between(max(lows, default=None), min(highs, default=None))
        return between or _refuse(at, f"no integer of up to {MAX_DIGITS} digits is within the bounds")

    def _object(self, schema: Mapping[str, Any], at: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            _refuse(at, "properties must be an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            _refuse(at, "required must be a list of names")
        others = schema.get("additionalProperties", True)
        names, needed = dict.fromkeys([*properties, *required]), set(required)
        if not names and others is False:
            return '"{" ws "}"'
        if not names:
            pair = f'string ":" ws {self.rule(others, f"{at}/additionalProperties")}'
            return f'"{{" ws ({pair} ("," ws {pair})* ws)? "}}"'
        pairs = []
        for name in names:
            pointer = f"{at}/properties/{name}" if name in properties else f"{at}/additionalProperties"
            value = self.rule(properties.get(name, others), pointer)
            pairs.append((f'{json_literal(name)} ":" ws {value}', name in needed))
        return f'"{{" ws {self._in_order(pairs)} ws "}}"'

    def _in_order(self, parts: Sequence[tuple[str, bool]], after: str = '""') -> str:
        """Add a rule for `parts`, given as (expression, whether it is required), with commas between them.

        Parts that are not required may be missing. `after` is the expression behind the last part.
        """
        first = '""'
        for part, is_required in reversed(parts):
            name = self._named([part])
            first = self._named([f"{name} {after}"] if is_required else [f"{name} {after}", first])
            after = self._named([f'"," ws {name} {after}' if is_required else f'("," ws {name})? {after}'])
        return first

    def _array(self, schema: Mapping[str, Any], at: str) -> str:
        least, most = _counts(schema, "minItems", "maxItems", at)
        leading, items = schema.get("prefixItems", []), schema.get("items", True)
        if not isinstance(leading, list):
            _refuse(at, "prefixItems must be a list")
        if isinstance(items, list):
            _refuse(at, "a list as items is not supported; rename it to prefixItems")
        if items is False:
            most = len(leading) if most is None else min(most, len(leading))
        if most is not None and least > most:
            _refuse(at, f"no array has {least} or more and at most {most} items")
        leading = leading[:most]
        parts = [self.rule(item, f"{at}/prefixItems/{i}") for i, item in enumerate(leading)]
        tail = '""'
        n_more = None if most is None else most - len(parts)
        if n_more != 0:
            item = self.rule(items, f"{at}/items")
            if not parts:
                parts, n_more = [item], None if n_more is None else n_more - 1
            tail = f'("," ws {item}){_repeated(max(least - len(parts), 0), n_more)}' if n_more != 0 else tail
        # An item may be missing only if all items behind it are missing.
        for i, part in reversed(list(enumerate(parts))):
            comma = '"," ws ' if i else ""
            tail = self._named([f"{comma}{part} {tail}"] if i < least else [f"{comma}{part} {tail}", '""'])
        return f'"[" ws {tail} ws "]"' if parts else '"[" ws "]"'


def _types(schema: Mapping[str, Any], keys: set[str], at: str) -> list[str]:
    """The types that a schema allows: the types it names, or the type that its keywords belong to."""
    unknown = keys - {"type"}.union(*KEYWORDS.values(), *REFUSED.values())
    if unknown:
        _refuse(at, f"{min(unknown)} is not supported")
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    else:
        types = [kind for kind in KEYWORDS if keys & (KEYWORDS[kind] | REFUSED[kind])]
        if len(types) > 1:
            _refuse(at, "it needs a type")
    if not types or any(not isinstance(kind, str) or kind not in KEYWORDS for kind in types):
        _refuse(at, f"type must be one of {', '.join(KEYWORDS)}, or a list of them")
    return types


def _counts(schema: Mapping[str, Any], least_key: str, most_key: str, at: str) -> tuple[int, int | None]:
    """The smallest and the largest count that a schema allows; None for no upper bound."""
    for key in (least_key, most_key):
        count = schema.get(key, 0)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MAX_REPEATED:
            _refuse(at, f"{key} must be an integer from 0 to {_MAX_REPEATED}")
    least, most = schema.get(least_key, 0), schema.get(most_key)
    if most is not None and least > most:
        _refuse(at, f"{least_key} is more than {most_key}")
    return least, most


def _check_alone(main: str, others: set[str], at: str) -> None:
    if others:
        _refuse(at, f"{min(others)} beside {main} is not supported")


def _repeated(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"


def json_literal(value: Any) -> str:
    """The JSON text of `value` as a GBNF literal."""
    return '"' + json.dumps(value, ensure_ascii=False).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _refuse(at: str, why: str) -> NoReturn:
    raise UsageError(f"the schema at {' '.join(at.split())}: {why}")

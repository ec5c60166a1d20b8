"""Converts a JSON schema to a GBNF grammar. Every text of the grammar is JSON that is valid by the schema.

A schema that the grammar cannot express is refused, never simplified silently. The grammar may allow less than the
schema: properties come in the schema's order, properties that the schema does not name occur only if it names none,
numbers have up to 15 digits, addresses up to 2,000 characters, and white space is at most a line break with 20 blanks.
`oneOf` is treated as `anyOf`. The formats of scalars.py are enforced, others ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specrun.constraints.keywords import (
    COMBINING,
    KEYWORDS,
    REFUSED,
    check_alone,
    identity,
    is_nothing,
    is_of_type,
    merged,
    pointed_at,
    refuse,
    restricting,
    tag_of,
    types_of,
)
from specrun.constraints.rules import Rules, Work, grammar_text, json_literal, repeated
from specrun.constraints.scalars import counts, number_expression, string_expression

_MOST_DIFFERENT = 100  # values that an array with uniqueItems may choose from
_MOST_FOLLOWED = 64  # references that name references


def schema_to_gbnf(schema: Any) -> str:
    """The grammar of a parsed JSON schema (a dict or bool). Raises UsageError if the schema cannot be expressed."""
    return grammar_text(*schema_rules(schema))


def schema_rules(
    schema: Any, prefix: str = "", work: Work | None = None, of: str | None = None
) -> tuple[str, dict[str, str]]:
    """A schema's rule, and the rules that it needs by name; `prefix` begins their names. Raises UsageError.

    work: that of schemas before, with which this one's is bounded. of: the property that is meant, of the whole schema.
    """
    converter = _Converter(schema, prefix, work or Work())
    part, at = (schema, "#") if of is None else (schema["properties"][of], f"#/properties/{of}")
    return converter.whole(part, at), converter.rules.named


class _Converter:
    """Collects the grammar's rules, one for each part of the schema."""

    def __init__(self, schema: Any, prefix: str, work: Work) -> None:
        self.rules = Rules(prefix, work)
        self._schema = schema
        self._references: dict[tuple[str, str | None], str] = {}
        self._places: dict[str, tuple[str, str]] = {}  # of the rules of references: where they are, and what they name
        self._joined: dict[tuple[str, ...], str] = {}  # rules of references under allOf; empty while it is made
        # Of schemas that references lead to again and again, by their ids: they are kept, so that no other gets the id.
        self._ones: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._all_values: dict[int, tuple[Any, list[Any] | None]] = {}

    def whole(self, schema: Any, at: str) -> str:
        """The same as `rule` for all that is converted."""
        name = self.rule(schema, at)
        for endless in sorted(self.rules.endless() & self._places.keys()):
            place, pointer = self._places[endless]
            refuse(place, f"{pointer} must contain itself, so no text of it would end")
        return name

    def rule(self, schema: Any, at: str) -> str:
        """Add a rule for `schema` and return its name. `at` is the schema's JSON pointer, for messages."""
        if schema is True:
            return "value"
        if is_nothing(schema):
            refuse(at, "false allows no value")
        if not isinstance(schema, dict):
            refuse(at, "a schema must be an object")
        if "$id" in schema and schema is not self._schema:
            refuse(at, "$id within a schema is not supported; take it out")
        keys = restricting(schema)
        if "allOf" in keys and (len(keys) > 1 or len(schema["allOf"]) > 1):
            return self._together(schema, at)
        combining = next((key for key in COMBINING if key in keys), None)
        if combining:
            check_alone(combining, keys - {combining}, at)
            return self._combined(combining, schema[combining], tag_of(schema), f"{at}/{combining}")
        if "const" in keys or "enum" in keys:
            return self.rules.add(json_literal(value) for value in self._constants(schema, at))
        if not keys:
            return "value"
        return self.rules.add(self._of_type(kind, schema, keys, at) for kind in types_of(schema, keys, at))

    def _combined(self, keyword: str, value: Any, tag: str | None, at: str) -> str:
        if keyword == "$ref":
            return self._referred(value, None, at)
        if not isinstance(value, list) or not value:
            refuse(at, "it must be a list of schemas")
        alternatives = [(i, schema) for i, schema in enumerate(value) if not is_nothing(schema)]
        return self.rules.add([self._tagged(schema, tag, f"{at}/{i}") for i, schema in alternatives or [(0, False)]])

    def _tagged(self, schema: Any, tag: str | None, at: str) -> str:
        """The rule of a schema whose objects must have the property `tag`, because it tells which schema is meant."""
        if not isinstance(schema, dict) or tag is None:
            return self.rule(schema, at)
        if restricting(schema) == {"$ref"}:
            return self._referred(schema["$ref"], tag, at)
        properties, required = schema.get("properties"), schema.get("required", [])
        is_missing = isinstance(properties, dict) and isinstance(required, list) and tag in properties
        return self.rule(schema | {"required": [*required, tag]} if is_missing else schema, at)

    def _referred(self, pointer: Any, tag: str | None, at: str) -> str:
        key = (str(pointer), tag)
        if key not in self._references:
            schema = self._target(pointer, at)
            # The name is stored before the schema is converted, because the schema may refer to itself.
            name = self._references[key] = self.rules.reserve()
            self._places[name] = at, pointer
            self.rules.put(name, self._tagged(schema, tag, pointer))
        return self._references[key]

    def _target(self, pointer: Any, at: str) -> Any:
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            refuse(at, f"{pointer} is not in this file; only #/... is supported")
        schema = pointed_at(self._schema, pointer)
        return refuse(at, f"there is no {pointer}") if schema is None else schema

    def _followed(self, schema: Any, at: str) -> Any:  # the schema that is meant where one is only a reference
        for _ in range(_MOST_FOLLOWED):
            if not isinstance(schema, dict) or restricting(schema) != {"$ref"}:
                return schema
            schema = self._target(schema["$ref"], at)
        return refuse(at, "its references name each other")

    def _together(self, schema: dict[str, Any], at: str) -> str:
        """The rule of a schema with allOf. The same references get one rule, however many places lead to them."""
        parts = schema["allOf"] if restricting(schema) == {"allOf"} and isinstance(schema["allOf"], list) else []
        named = [part for part in parts if isinstance(part, dict) and restricting(part) == {"$ref"}]
        if not named or len(named) < len(parts):
            return self.rule(self._as_one(schema, at), at)
        key = tuple(dict.fromkeys(str(part["$ref"]) for part in named))
        if key not in self._joined:
            self._joined[key] = ""
            self._joined[key] = self.rule(self._as_one(schema, at), at)
        return self._joined[key] or refuse(at, "its references name each other under allOf; write them as one schema")

    def _as_one(self, schema: dict[str, Any], at: str, depth: int = 0) -> dict[str, Any]:
        """The schema that says the same as one with allOf, and as the keywords beside it."""
        if id(schema) in self._ones:
            return self._ones[id(schema)][1]
        if depth > _MOST_FOLLOWED:
            refuse(at, "its references name each other")
        parts = schema["allOf"]
        if not isinstance(parts, list) or not parts:
            refuse(f"{at}/allOf", "it must be a list of schemas")
        parts = [self._followed(part, f"{at}/allOf/{i}") for i, part in enumerate(parts)]
        for i, part in enumerate(parts):
            if not isinstance(part, dict) or {"$ref", "anyOf", "oneOf"} & part.keys():
                refuse(f"{at}/allOf/{i}", "it is too much for allOf with several schemas; write them as one")
        beside = {key: value for key, value in schema.items() if key != "allOf"}
        inner = [self._as_one(part, f"{at}/allOf", depth + 1) if "allOf" in part else part for part in parts]
        self._ones[id(schema)] = schema, merged([beside, *inner], at)
        return self._ones[id(schema)][1]

    def _constants(self, schema: Mapping[str, Any], at: str) -> list[Any]:
        check_alone("enum", restricting(schema) - {"const", "enum", "type"}, at)
        values = schema.get("enum", [schema.get("const")])
        if not isinstance(values, list):
            refuse(at, "enum must be a list")
        if "const" in schema:
            values = [value for value in values if identity(value) == identity(schema["const"])]
        if "type" in schema:
            kinds = types_of(schema, {"type"}, at)
            values = [value for value in values if any(is_of_type(value, kind) for kind in kinds)]
        return list({identity(value): value for value in values}.values()) or refuse(at, "no value is allowed")

    def _of_type(self, kind: str, schema: Mapping[str, Any], keys: set[str], at: str) -> str:
        """A GBNF expression for values of one type; only the type's name if no keyword restricts it."""
        for key in sorted(REFUSED[kind] & keys):
            if schema[key] is not False:
                refuse(at, f"{key} is not supported for type {kind}")
        if kind == "string":  # `format` may restrict it, which is no keyword
            return string_expression(schema, at, self.rules)
        if not keys & KEYWORDS[kind]:
            return kind
        if kind in ("integer", "number"):
            return number_expression(kind, schema, at, self.rules)
        return self._object(schema, at) if kind == "object" else self._array(schema, at)

    def _object(self, schema: Mapping[str, Any], at: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            refuse(at, "properties must be an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            refuse(at, "required must be a list of names")
        others = schema.get("additionalProperties", True)
        names, needed = dict.fromkeys([*properties, *required]), set(required)
        allowed = self._names(schema, at)
        if isinstance(allowed, list):
            among = set(allowed)
            names = dict.fromkeys(name for name in [*names, *allowed] if name in among)
            if missing := needed - names.keys():
                refuse(at, f"propertyNames does not allow {min(missing)}, which is required")
        if not names and not isinstance(allowed, list):
            return self._record(schema, "string" if allowed is None else allowed, at)
        least, most = counts(schema, "minProperties", "maxProperties", at)
        if "patternProperties" in schema or least > len(needed) or (most is not None and most < len(names)):
            refuse(at, "patternProperties, minProperties and maxProperties are not supported beside named properties")
        pairs = []
        for name in names:
            value = properties.get(name, others)
            if is_nothing(value) and name not in needed:
                continue
            pointer = f"{at}/properties/{name}" if name in properties else f"{at}/additionalProperties"
            pairs.append((f'{json_literal(name)} ":" ws {self.rule(value, pointer)}', name in needed))
        return f'"{{" ws {self.rules.in_order(pairs)} ws "}}"' if pairs else '"{" ws "}"'

    def _names(self, schema: Mapping[str, Any], at: str) -> list[str] | str | None:
        """What propertyNames asks for: the names, or an expression for them; None for any."""
        at += "/propertyNames"
        names = self._followed(schema.get("propertyNames", True), at)
        if names is True or (isinstance(names, dict) and restricting(names) <= {"type"} and "format" not in names):
            return None
        if not isinstance(names, dict) or not restricting(names) <= KEYWORDS["string"] | {"type", "const", "enum"}:
            refuse(at, "it is supported with type, enum, const, pattern and lengths only")
        if {"const", "enum"} & names.keys():
            return self._constants(names | {"type": "string"}, at)
        return self.rule(names | {"type": "string"}, at)

    def _record(self, schema: Mapping[str, Any], name: str, at: str) -> str:
        """An object whose properties have any names, or names by a pattern, and the same schema."""
        value, pointer = schema.get("additionalProperties", True), f"{at}/additionalProperties"
        least, most = counts(schema, "minProperties", "maxProperties", at)
        if patterns := schema.get("patternProperties"):
            if not isinstance(patterns, dict) or len(patterns) > 1 or name != "string":
                refuse(at, "patternProperties is supported with one pattern, and without propertyNames")
            pointer, ((pattern, value),) = f"{at}/patternProperties", patterns.items()
            name = self.rules.add([string_expression({"pattern": pattern}, pointer, self.rules)])
        if least > 1:
            refuse(at, "minProperties of more than 1 is not supported")  # a name may come twice
        if is_nothing(value) or most == 0:
            return '"{" ws "}"' if not least else refuse(at, "minProperties asks for more than is allowed")
        pair = f'{name} ":" ws {self.rule(value, pointer)}'
        more = repeated(0, None if most is None else most - 1)
        return f'"{{" ws ({pair} ("," ws {pair}){more} ws){"" if least else "?"} "}}"'

    def _array(self, schema: Mapping[str, Any], at: str) -> str:
        least, most = counts(schema, "minItems", "maxItems", at)
        leading, items = schema.get("prefixItems", []), schema.get("items", True)
        if not isinstance(leading, list):
            refuse(at, "prefixItems must be a list")
        if isinstance(items, list):
            refuse(at, "a list as items is not supported; rename it to prefixItems")
        if is_nothing(items):
            most = len(leading) if most is None else min(most, len(leading))
        if most is not None and least > most:
            refuse(at, f"no array has {least} or more and at most {most} items")
        leading = leading[:most]
        if schema.get("uniqueItems", False) is not False and most not in (0, 1):
            return self._set(items, leading, least, most, at)
        parts = [self.rule(item, f"{at}/prefixItems/{i}") for i, item in enumerate(leading)]
        tail = '""'
        n_more = None if most is None else most - len(parts)
        if n_more != 0:
            item = self.rule(items, f"{at}/items")
            if not parts:
                parts, n_more = [item], None if n_more is None else n_more - 1
            tail = f'("," ws {item}){repeated(max(least - len(parts), 0), n_more)}' if n_more != 0 else tail
        # An item may be missing only if all items after it are missing.
        for i, part in reversed(list(enumerate(parts))):
            comma = '"," ws ' if i else ""
            tail = self.rules.add([f"{comma}{part} {tail}"] if i < least else [f"{comma}{part} {tail}", '""'])
        return f'"[" ws {tail} ws "]"' if parts else '"[" ws "]"'

    def _set(self, items: Any, leading: list[Any], least: int, most: int | None, at: str) -> str:
        """An array whose items are different: a choice of a few values."""
        values = None if leading else self._values(items, f"{at}/items")
        if values is None or len(values) > _MOST_DIFFERENT:
            refuse(at, "uniqueItems is supported for items of an enum only; leave it out (list instead of set)")
        most = len(values) if most is None else min(most, len(values))
        if least > most:
            refuse(at, f"no array has {least} or more different items of {len(values)}")
        return f'"[" ws {self.rules.different([json_literal(value) for value in values], least, most)} ws "]"'

    def _values(self, schema: Any, at: str) -> list[Any] | None:
        """All values that a schema allows, none of them twice; None if there are many."""
        schema = self._followed(schema, at)
        if id(schema) in self._all_values:
            return self._all_values[id(schema)][1]
        keys = restricting(schema) if isinstance(schema, dict) else set()
        values = None
        if {"const", "enum"} & keys:
            values = self._constants(schema, at)
        elif keys in ({"anyOf"}, {"oneOf"}) and isinstance(schema[min(keys)], list):
            parts = [self._values(part, at) for part in schema[min(keys)]]
            every = {identity(value): value for part in parts for value in part or ()}
            values = None if None in parts else list(every.values())
        elif keys == {"type"}:
            constants: dict[str, list[Any]] = {"boolean": [True, False], "null": [None]}
            values = constants.get(str(schema["type"]))
        self._all_values[id(schema)] = schema, values
        return values

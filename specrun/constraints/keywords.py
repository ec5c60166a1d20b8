"""The language of JSON Schema: keywords that are supported or refused, types, and pointers to parts of a schema."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

_MOST_DIGITS = 9  # of an index in a pointer

# Keywords that do not restrict which texts are valid. (`format` may; json_schema.py handles it for strings.)
ANNOTATIONS = {
    *("$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default", "examples"),
    *("deprecated", "readOnly", "writeOnly", "format", "contentEncoding", "contentMediaType"),
}
# Keywords whose value is another schema or a list of schemas for the same place.
COMBINING = ("$ref", "anyOf", "oneOf", "allOf")
# The supported keywords of each type. A keyword of one type does not restrict values of another type.
KEYWORDS: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set(),
    "boolean": set(),
    "null": set(),
}
# The keywords of each type that cannot be expressed.
REFUSED: dict[str, set[str]] = {
    "object": {
        *("patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired"),
        *("dependentSchemas", "dependencies", "unevaluatedProperties"),
    },
    "array": {"uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems", "additionalItems"},
    "string": {"pattern"},
    "integer": {"multipleOf"},
    "number": {"multipleOf"} | KEYWORDS["integer"],
    "boolean": set(),
    "null": set(),
}


def is_of_type(value: Any, kind: str) -> bool:
    """Whether a parsed JSON value has the JSON Schema type `kind`."""
    if kind in ("integer", "number"):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and (kind == "number" or value == int(value))
    types: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, types[kind])


def pointed_at(root: Any, pointer: str) -> Any:
    """The part of `root` that a pointer beginning with # names; None if there is none."""
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

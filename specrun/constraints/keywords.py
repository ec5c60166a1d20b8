"""The keywords of JSON Schema: which are understood, for which type, and which are refused."""

from __future__ import annotations

from typing import Any

# They say nothing about which texts are valid (`format` need not, and is looked at apart).
ANNOTATIONS = {
    *("$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default", "examples"),
    *("deprecated", "readOnly", "writeOnly", "format", "contentEncoding", "contentMediaType"),
}
COMBINING = ("$ref", "anyOf", "oneOf", "allOf")
# By type, the keywords that speak of it. One of another type's says nothing about a value of this type.
KEYWORDS: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set(),
    "boolean": set(),
    "null": set(),
}
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
    """Whether a JSON value is of a schema's type."""
    if kind in ("integer", "number"):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and (kind == "number" or value == int(value))
    types: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, types[kind])

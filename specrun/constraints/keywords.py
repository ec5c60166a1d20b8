"""The language of JSON Schema: keywords that are supported or refused, types, equal values, schemas as one, and
formats, as regular expressions that allow no more than their standards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

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


_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAYS_31, _DAYS_30 = r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])", r"(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
# No year 0000: RFC 3339 has it, Python has not.
_DATE = rf"(?!0000)(?:\d{{4}}-(?:{_DAYS_31}|{_DAYS_30}|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
_HOUR = r"(?:[01]\d|2[0-3])"
_TIME = rf"{_HOUR}:[0-5]\d:[0-5]\d(?:\.\d{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5]\d)"
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,29}[A-Za-z0-9])?"  # up to 63 are allowed, of 253 together
LONGEST_HOST = 4 * 31 + 3  # characters of what follows
_SHORT_LABEL = "[A-Za-z0-9]+(?:-+[A-Za-z0-9]+)*"
_SHORT_HOST = rf"{_SHORT_LABEL}(?:\.{_SHORT_LABEL})*"
_MAIL_NAME = r"[A-Za-z0-9_%+-]+(?:\.[A-Za-z0-9_%+-]+)*"
_MAIL_HOST = r"(?:[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*\.)+[A-Za-z]{2,}"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [f"(?:{_GROUP}:){{7}}{_GROUP}", f":(?::{_GROUP}){{1,7}}", "::"]
    + [f"(?:{_GROUP}:){{{n}}}(?::{_GROUP}){{1,{7 - n}}}" for n in range(1, 7)]
    + [f"(?:{_GROUP}:){{1,7}}:"]
)
# Addresses: what has a host, and what has none (mailto:, urn:).
URI_CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})"
URI_SCHEME, URI_PORT = r"[A-Za-z][A-Za-z0-9+.-]{0,20}://", r":[1-9]\d{0,3}"
URI_WITHOUT_HOST = r"(?!https?:)[A-Za-z][A-Za-z0-9+.-]{0,20}:[A-Za-z0-9]"
_URI = (
    rf"(?:[A-Za-z][A-Za-z0-9+.-]*://{_SHORT_HOST}(?:{URI_PORT})?(?:[/?]{URI_CHARACTER}*)?"
    rf"|(?!https?:)[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9]{URI_CHARACTER}*)(?:#{URI_CHARACTER}*)?"
)
_SOME = r"\d{1,6}"
_CLOCK = rf"T(?=\d)(?:{_SOME}H)?(?:{_SOME}M)?(?:{_SOME}S)?"
_DURATION = rf"P(?=\d|T\d)(?:{_SOME}W|(?:{_SOME}Y)?(?:{_SOME}M)?(?:{_SOME}D)?(?:{_CLOCK})?)"
_HEX = "[0-9a-fA-F]"


def _uuid(version: str = _HEX, variant: str = _HEX) -> str:
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-{variant}{_HEX}{{3}}-{_HEX}{{12}}"


FORMATS = {
    name: f"^(?:{expression})$"
    for name, expression in {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}T{_TIME}",
        "duration": _DURATION,
        "email": f"{_MAIL_NAME}@{_MAIL_HOST}",
        "hostname": rf"{LABEL}(?:\.{LABEL}){{0,3}}",
        "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
        "ipv6": _IPV6,
        "uri": _URI,
        "uuid": _uuid(),
        # As pydantic names them.
        **{f"uuid{version}": _uuid(str(version), "[89abAB]") for version in range(1, 9)},
    }.items()
}

# Host names that are right as long as they are no longer than one label may be, for which nothing has to be counted.
LONGEST_LABEL = 63
SHORT_HOST = f"^(?:{_SHORT_HOST})$"
# What Zod writes beside the format. It says nothing more, and to count to 253 as well takes too many rules.
ZOD_HOST = (
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"
)

"""Schemas by which a text can be read in too many ways are refused, and those of real tools are not."""

from __future__ import annotations

from typing import Any

import pytest

from specrun.constraints.keywords import check_readings
from specrun.errors import UsageError


def union(*alternatives: Any) -> dict[str, Any]:
    return {"anyOf": list(alternatives)}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def node(kind: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"kind": {"const": kind}, **properties},
        "required": ["kind", *properties],
        "additionalProperties": False,
    }


SELF = {"$ref": "#"}
DOUBLING = {
    f"d{i}": union(array({"$ref": f"#/$defs/d{i + 1}"}), array({"$ref": f"#/$defs/d{i + 1}"})) for i in range(9)
}


@pytest.mark.parametrize(
    "schema",
    [
        union(array(SELF), array(SELF)),
        union(array(SELF), {"type": ["array", "null"], "items": SELF}),
        {"$defs": {"a": union(array(SELF), array({"$ref": "#/$defs/b"})), "b": array(SELF)}, "$ref": "#/$defs/a"},
        {"$defs": {**DOUBLING, "d9": {}}, "$ref": "#/$defs/d0"},
        {"%24": 1, "$defs": {"a": union(array({"$ref": "#/%24defs/a"}), array({"$ref": "#/%24defs/a"}))}}
        | {"$ref": "#/%24defs/a"},
        union({"$ref": "#/x"}, SELF) | {"x": array(SELF)} | {"oneOf": []},
    ],
)
def test_too_many_ways_are_refused(schema: Any) -> None:
    with pytest.raises(UsageError, match="ways"):
        check_readings(schema)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "object", "properties": {f"p{i}": {} for i in range(6000)}}, "parts"),
        (
            {"type": "object", "properties": {f"p{i}": {"type": "array", "maxItems": 1000} for i in range(21)}},
            "items together",
        ),
    ],
)
def test_large_schemas_are_refused(schema: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_readings(schema)


def test_deep_schemas_are_refused() -> None:
    schema: Any = {}
    for _ in range(70):
        schema = array(schema)
    with pytest.raises(UsageError, match="nested"):
        check_readings(schema)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object"},
        union({"type": "string"}, {"type": "integer"}, array(SELF), {"type": "object", "additionalProperties": SELF}),
        union(array(SELF), array({"type": "string"})),
        union(node("a", left=SELF, right=SELF), node("b", of=SELF), node("c")),
        {"type": "object", "properties": {"next": union(SELF, {"type": "null"})}},
        {"$ref": "#/nowhere"},
        {"anyOf": 1, "properties": 1, "items": [1], "maxLength": "x"},
    ],
)
def test_usual_schemas_are_not(schema: Any) -> None:
    check_readings(schema)


def test_every_part_that_makes_rules_is_counted() -> None:
    many = {f"p{i}": {"type": "array", "maxItems": 1000.0} for i in range(21)}
    with pytest.raises(UsageError, match="items together"):
        check_readings({"type": "object", "properties": many})
    with pytest.raises(UsageError, match="ways"):
        check_readings({"type": "object", "propertyNames": union(*[{"type": "string"}] * 65)})


def test_alternatives_that_lead_to_the_same_ones_are_counted() -> None:
    schema: dict[str, Any] = {f"d{i}": union(*[{"$ref": f"#/$defs/d{i + 1}"}] * 60) for i in range(4)}
    with pytest.raises(UsageError, match="alternatives together"):
        check_readings({"$defs": {**schema, "d4": {"const": 1}}, "$ref": "#/$defs/d0"})

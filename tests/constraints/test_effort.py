"""Small schemas that would take exponential work or rules are converted once, or refused as soon as it is too much."""

from __future__ import annotations

from typing import Any

import pytest

from specrun.constraints.json_schema import schema_rules, schema_to_gbnf
from specrun.constraints.regular import MOST_WORK
from specrun.constraints.rules import MOST_CHARACTERS, Work
from specrun.errors import UsageError


@pytest.mark.parametrize(
    ("way_out", "is_refused"),
    [
        ({"$ref": "#/$defs/node"}, True),
        ({"type": "array", "items": {"$ref": "#/$defs/node"}, "minItems": 1}, True),
        ({"type": "array", "items": {"$ref": "#/$defs/node"}}, False),
        ({"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}, False),
        ({"anyOf": [{"$ref": "#/$defs/node"}, {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}]}, True),
    ],
)
def test_what_contains_itself_needs_a_text_that_ends(way_out: Any, is_refused: bool) -> None:
    node = {"type": "object", "properties": {"next": way_out, "(": {"const": "("}}, "required": ["next", "("]}
    schema = {"$defs": {"node": node}, "$ref": "#/$defs/node"}
    if is_refused:
        with pytest.raises(UsageError, match="must contain itself"):
            schema_to_gbnf(schema)
    else:
        assert "::=" in schema_to_gbnf(schema)


def test_references_that_are_joined_again_and_again_are_joined_once() -> None:
    pair = {
        f"{name}{i}": {
            "type": "object",
            "properties": {key: {"$ref": f"#/$defs/{name}{i + 1}"} for key in ("p", "q")},
        }
        for name in "ab"
        for i in range(60)
    }
    last = {"a60": {"type": "string"}, "b60": {"maxLength": 5}}
    schema = {"$defs": {**pair, **last}, "allOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}]}
    assert schema_to_gbnf(schema).count("::=") < 1000


def test_the_same_schemas_in_allof_are_joined_once() -> None:
    again = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(50)}
    schema = {"$defs": {**again, "d50": {"type": "string", "maxLength": 5}}, "allOf": [{"$ref": "#/$defs/d0"}] * 2}
    assert "char{0,5}" in schema_to_gbnf(schema)


def test_patterns_in_allof_in_allof_are_one_list() -> None:
    parts = [{"allOf": [{"pattern": f"^{a}"}, {"pattern": f"{b}$"}]} for a, b in (("a", "z"), ("ab", "yz"))]
    assert "::=" in schema_to_gbnf({"type": "string", "allOf": parts})


def test_references_that_need_each_other_under_allof_are_refused() -> None:
    needs = {f"{name}1": {"properties": {"x": {"$ref": f"#/$defs/{name}1"}}, "type": "object"} for name in "ab"}
    schema = {"$defs": needs, "allOf": [{"$ref": "#/$defs/a1"}, {"$ref": "#/$defs/b1"}]}
    with pytest.raises(UsageError, match="name each other under allOf"):
        schema_to_gbnf(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"enum": list(range(100))}, "uniqueItems": True, "minItems": 40, "maxItems": 60},
        {
            "$defs": {
                **{
                    f"{name}{i}": {
                        "type": "object",
                        "properties": {
                            key: {"title": key, "allOf": [{"$ref": f"#/$defs/{name}{i + 1}"}]} for key in ("p", "q")
                        },
                    }
                    for name in "ab"
                    for i in range(40)
                },
                "a40": {"type": "string"},
                "b40": {"maxLength": 5},
            },
            "allOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}],
        },
    ],
    ids=["different", "joined"],
)
def test_too_large_grammars_are_refused_while_they_grow(schema: Any) -> None:
    with pytest.raises(UsageError, match=f"more than {MOST_CHARACTERS} characters or 10000 rules"):
        schema_to_gbnf(schema)


def test_ways_to_the_same_values_are_gone_once() -> None:
    ways = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(50)}
    schema = {"$defs": {**ways, "d50": {"enum": [1, 2]}}, "items": {"$ref": "#/$defs/d0"}, "uniqueItems": True}
    assert '"1"' in schema_to_gbnf(schema)


def test_names_of_a_long_list_are_looked_up() -> None:
    n_compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal n_compared
            n_compared += 1
            return str.__eq__(self, other)  # type: ignore[arg-type]

    names = [Name(f"n{i}") for i in range(500)]
    assert "n499" in schema_to_gbnf({"propertyNames": {"enum": names}, "properties": {"n0": True}})
    assert n_compared < 10 * len(names)


def test_patterns_of_several_schemas_are_bounded_together() -> None:
    bad = {"type": "string", "pattern": "^(?:b{1,100}){1,100}$"}
    work = Work()
    for schema in (bad, {"type": "string", "pattern": "^c+$"}):
        with pytest.raises(UsageError, match="too many rules"):
            schema_rules(schema, "", work)


@pytest.mark.slow
def test_the_same_pattern_costs_once() -> None:
    work = Work()
    for _ in range(100):
        schema_rules({"type": "string", "format": "email", "minLength": 3, "maxLength": 200}, "", work)
    assert sum(work.costs.values()) < MOST_WORK // 2

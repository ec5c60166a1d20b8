"""JSON schemas as grammars: every text that llama.cpp's grammar allows is valid by the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.constraints import schema_to_gbnf
from specrun.errors import UsageError
from specrun.llama import LlamaModel
from specrun.llama.grammar import Grammar

NESTED: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "a function",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 6},
        "kind": {"enum": ["def", 'say "x"', "a\\b", "é\n", 7, None, {"a": [1]}]},
        "arguments": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {"size": {"type": "integer", "minimum": -3, "maximum": 120}, 'x"y': {"const": True}},
                "required": ["size"],
            },
        },
        "weight": {"type": "number"},
        "doc": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}], "default": None},
        "pair": {"type": "array", "prefixItems": [{"type": "boolean"}, {"$ref": "#/$defs/small"}], "items": False},
        "next": {"$ref": "#/$defs/link"},
        "when": {"type": "string", "format": "date"},
    },
    "required": ["kind", "arguments", "extra"],
    "additionalProperties": {"type": ["integer", "boolean"]},
    "$defs": {
        "small": {"type": "integer", "exclusiveMinimum": 1.5, "exclusiveMaximum": 4},
        "link": {"type": "object", "properties": {"to": {"$ref": "#/$defs/link"}}, "additionalProperties": False},
    },
}


def accepts(schema: Any, value: Any, root: Any) -> bool:
    """Whether a value is valid by a schema with the keywords used here. Follows the specification, not specrun."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].split("/")[1:]:
            target = target[part]
        return accepts(target, value, root)
    if any(key in schema for key in ("anyOf", "allOf", "oneOf")):
        key = next(key for key in ("anyOf", "allOf", "oneOf") if key in schema)
        return any(accepts(s, value, root) for s in schema[key])
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    types = schema.get("type", [])
    types = types if isinstance(types, list) else [types]
    return not types or any(accepts_type(kind, schema, value, root) for kind in types)


def accepts_type(kind: str, schema: dict[str, Any], value: Any, root: Any) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return (
            (kind == "number" or value == int(value))
            and schema.get("minimum", value) <= value <= schema.get("maximum", value)
            and schema.get("exclusiveMinimum", value - 1) < value < schema.get("exclusiveMaximum", value + 1)
        )
    if kind == "string":
        return isinstance(value, str) and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 9e9)
    if kind == "array":
        if not isinstance(value, list) or not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 9e9):
            return False
        leading = schema.get("prefixItems", [])
        schemas = [*leading, *[schema.get("items", True)] * len(value)]
        return all(accepts(s, item, root) for s, item in zip(schemas, value, strict=False))
    if not isinstance(value, dict) or not all(name in value for name in schema.get("required", [])):
        return False
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    return all(accepts(properties.get(name, others), item, root) for name, item in value.items())


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(embedded.TARGET) as model:
        yield model


def random_text(grammar: Grammar, model: LlamaModel, seed: int) -> str:
    """A complete random text of the grammar. The longer it gets, the likelier a token that closes something."""
    rng = np.random.default_rng(seed)
    everything = np.arange(model.n_vocab)
    closes = np.array([re.search(rb'["}\]]', model.token_bytes(token)) is not None for token in everything])
    written: list[int] = []
    while True:
        allowed = everything[grammar.allowed(written, everything)]
        assert len(allowed), b"".join(map(model.token_bytes, written))
        closing = allowed[closes[allowed]]
        if len(closing) and rng.random() < len(written) / 60:
            allowed = closing
        token = int(rng.choice(allowed))
        if model.is_end_of_generation(token) or (grammar.is_complete(written) and rng.random() < 0.5):
            return b"".join(map(model.token_bytes, written)).decode("utf-8")
        written.append(token)


SCHEMAS: list[Any] = [
    NESTED,
    True,
    {},
    {"type": "integer"},
    {"type": "integer", "minimum": 10},
    {"type": ["string", "null"], "maxLength": 3},
    {"type": "object"},
    {"type": "object", "additionalProperties": {"enum": [1, 2]}},
    {"type": "object", "additionalProperties": False},
    {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]},
    {"properties": {"a": {"const": 1}, "b": {"const": 2}}},
    {"type": "array"},
    {"type": "array", "maxItems": 0},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}, "minItems": 1},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 1},
    {"oneOf": [{"const": "x"}, {"allOf": [{"type": "boolean"}]}]},
    {"enum": ["a", 1, 1.5, True], "type": ["integer", "boolean"]},
    {"const": {"deep": ["é", '"', "\\", "\u2028"]}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_whatever_the_grammar_lets_through_the_schema_accepts(model: LlamaModel, schema: Any) -> None:
    texts = set()
    with Grammar(schema_to_gbnf(schema), model) as grammar:
        for seed in range(25):
            text = random_text(grammar, model, seed)
            assert accepts(schema, json.loads(text), schema), text
            texts.add(text)
    assert len(texts) > 1 or "const" in schema


def lets_through(model: LlamaModel, schema: Any, text: str) -> bool:
    """Whether the grammar allows `text`, in the model's own tokens, and an end after it."""
    with Grammar(schema_to_gbnf(schema), model) as grammar:
        return grammar.is_complete(model.tokenize(text, add_special=False))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ['"a b"', '"\\u00e9\\n"', '"é"', '""'], ['"\\ud800"', '"a\nb"', '"', "a"]),
        ({"type": "number"}, ["0", "-1.50", "2e-3"], ["01", "1.", ".5", "+1", "NaN"]),
        ({"type": "string", "format": "date"}, ['"2024-02-29"', '"1999-12-31"'], ['"2024-04-31"', '"2024-13-01"']),
        ({"type": "string", "format": "date-time"}, ['"2024-01-02T23:59:00Z"'], ['"2024-01-02 23:59:00Z"']),
        ({"type": "string", "format": "uuid"}, [f'"{UUID(int=7)}"'], [f'"{UUID(int=7)}0"']),
        ({"type": "string", "format": "of no account"}, ['"x"'], ["1"]),
        (
            {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]},
            ['{"b": 2}', '{"a":1,"b":2}', '{"b": 2, "c": 3}', '{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}'],
            ["{}", '{"a": 1}', '{"b": 2, "a": 1}', '{"b": 2,}', '{"b": 2, "d": 1}'],
        ),
        ({"type": "array", "maxItems": 2}, ["[]", "[1]", '[1, {"a": [null, true]}]'], ["[1,2,3]", "[,]", "[1"]),
        ({"type": "array", "prefixItems": [{"const": 1}]}, ["[]", "[1]", "[1, 2]"], ["[2]"]),
        ({"enum": ["a", "ab"]}, ['"a"', '"ab"'], ['"b"', "a"]),
    ],
)
def test_what_is_let_through(model: LlamaModel, schema: Any, good: list[str], bad: list[str]) -> None:
    expected = dict.fromkeys(good, True) | dict.fromkeys(bad, False)
    assert {text: lets_through(model, schema, text) for text in expected} == expected


@pytest.mark.slow
def test_formats_are_those_of_the_standard_library(model: LlamaModel) -> None:
    for form, parse in (("date", date.fromisoformat), ("uuid", UUID), ("date-time", _parse_datetime)):
        with Grammar(schema_to_gbnf({"type": "string", "format": form}), model) as grammar:
            for seed in range(20):
                text = json.loads(random_text(grammar, model, seed))
                if "02-29" not in text and not text.startswith("0000"):  # Python has no year 0
                    parse(text)


def _parse_datetime(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@pytest.mark.parametrize(
    ("schema", "parts"),
    [
        ({"type": "string", "pattern": "^a$"}, ["#", "pattern is not supported for type string"]),
        ({"properties": {"age": {"type": "number", "minimum": 0}}}, ["#/properties/age", "minimum", "number"]),
        ({"minimum": 0}, ["needs a type"]),
        ({"type": "text"}, ["type must be one of object, array"]),
        ({"type": []}, ["type must be one of"]),
        ({"type": "array", "uniqueItems": True}, ["uniqueItems"]),
        ({"type": "array", "items": [{"type": "null"}]}, ["prefixItems"]),
        ({"type": "array", "minItems": 3, "maxItems": 2}, ["minItems is more than maxItems"]),
        ({"type": "array", "minItems": 3, "items": False}, ["no array"]),
        ({"type": "string", "maxLength": 100_000}, ["maxLength must be an integer from 0 to 1000"]),
        ({"type": "string", "minLength": True}, ["minLength must be an integer"]),
        ({"type": "integer", "minimum": 5, "maximum": 4}, ["no integer"]),
        ({"type": "integer", "minimum": "5"}, ["minimum must be a number"]),
        ({"not": {"type": "null"}}, ["not is not supported"]),
        ({"anyOf": [True], "type": "null"}, ["type beside anyOf"]),
        ({"anyOf": []}, ["#/anyOf", "a list of schemas"]),
        ({"allOf": [{}, {}]}, ["allOf"]),
        ({"$ref": "https://example.org/schema"}, ["not in this file"]),
        ({"$ref": "#/$defs/none"}, ["there is no #/$defs/none"]),
        ({"enum": []}, ["no value"]),
        ({"enum": ["a"], "type": "null"}, ["no value"]),
        ({"enum": "a"}, ["enum must be a list"]),
        ({"required": ["a"], "additionalProperties": False}, ["false allows no value"]),
        ({"required": "a"}, ["required must be a list"]),
        ({"properties": []}, ["properties must be an object"]),
        (False, ["false allows no value"]),
        ([], ["a schema must be an object"]),
    ],
    ids=str,
)
def test_what_cannot_be_expressed_is_refused(schema: Any, parts: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        schema_to_gbnf(schema)
    message = str(refused.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


def test_keywords_of_another_type_say_nothing(model: LlamaModel) -> None:
    assert lets_through(
        model, {"type": "null", "pattern": "x", "minLength": 3, "x-own": 1, "uniqueItems": True}, "null"
    )

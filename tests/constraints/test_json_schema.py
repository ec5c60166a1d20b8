"""JSON schemas as grammars: every text that llama.cpp's grammar allows is valid by the schema."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from specrun.constraints.json_schema import schema_to_gbnf
from specrun.constraints.scalars import FORMATS, ZOD_HOST
from specrun.errors import UsageError
from specrun.llama import LlamaModel
from tests.constraints.walks import check_texts, lets_through

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


@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_whatever_the_grammar_lets_through_the_schema_accepts(model: LlamaModel, schema: Any) -> None:
    texts = check_texts(model, schema, 25)
    assert len(texts) > 1 or "const" in schema


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ['"a b"', '"\\u00e9\\n"', '"é"', '""'], ['"\\ud800"', '"a\nb"', '"', "a"]),
        ({"type": "number"}, ["0", "-1.50", "2e-3"], ["01", "1.", ".5", "+1", "NaN"]),
        (
            {"type": "string", "format": "date"},
            ['"2024-02-29"', '"1999-12-31"', '"2000-02-29"'],
            ['"2024-04-31"', '"2024-13-01"', '"2024-02-30"', '"2023-02-29"', '"1900-02-29"', '"0000-01-01"'],
        ),
        ({"type": "string", "format": "hostname"}, ['"a-1.example.org"'], ['"-a"', '"a..b"', '""']),
        (
            {"type": "string", "format": "hostname", "pattern": ZOD_HOST},
            ['"a-1.example.org"', '"a"'],
            ['"-a"', '"a..b"', '""'],
        ),
        ({"type": "number", "multipleOf": 0.5}, ["0.5", "12", "-7.0"], ["0.25", "0.1", "1.51"]),
        ({"type": "string", "format": "email"}, ['"a.b+c@x-y.example.org"'], ['"a@b"', '"a..b@c.de"', '"@c.de"']),
        ({"type": "string", "format": "ipv6"}, ['"1:2:3:4:5:6:7:8"', '"::"', '"1::8"'], ['"1:2"', '"1::2::3"', '":1"']),
        ({"type": "string", "format": "uri"}, ['"mailto:a@b.c"', '"s3://a/b"', '"http://a:80"'], ['"a"', '"http:a"']),
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
        ({"const": True}, ["true"], ["1"]),
        ({"enum": [1, True, "1"], "const": 1}, ["1"], ["true", '"1"']),
        ({"title": "A", "description": "a", "default": 1, "x-own": 1, "format": "date"}, ["1", '"a"', "[null]"], ["a"]),
        ({"type": "array", "items": {"title": "A"}}, ['[1, "a"]'], ["1"]),
        ({"anyOf": [{"$comment": "any"}]}, ["{}", "1"], ["x"]),
        ({"$ref": "#me", "$defs": {"a": {"$anchor": "me", "type": "null"}}}, ["null"], ["1"]),
        ({"allOf": [{"pattern": "^a"}, {"pattern": "z$"}], "type": "string"}, ['"az"', '"abcz"'], ['"a"', '"z"']),
        ({"allOf": [{}, {"title": "a"}]}, ["1"], ["x"]),
        (
            {"allOf": [{"$ref": "#/$defs/a"}, {"required": ["b"], "properties": {"b": {"minimum": 1}}}]}
            | {"$defs": {"a": {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}}},
            ['{"a": null, "b": 1.5}'],
            ['{"a": null}', '{"a": null, "b": 0.5}'],
        ),
        ({"type": "string", "maxLength": 2500}, [f'"{"a" * n}"' for n in (0, 999, 1000, 2500)], [f'"{"a" * 2501}"']),
        ({"pattern": "^a+$", "maxLength": 2500}, [f'"{"a" * n}"' for n in (1, 2500)], ['""', f'"{"a" * 2501}"']),
        ({"patternProperties": {"^x": {"type": "null"}}}, ["{}", '{"x": null, "xy": null}'], ['{"y": null}']),
        ({"type": "object", "minProperties": 1, "maxProperties": 2}, ['{"a": 1}'], ["{}", '{"a":1,"b":1,"c":1}']),
        ({"properties": {"a": {"not": {}}, "b": {"type": "null"}}}, ["{}", '{"b": null}'], ['{"a": 1}']),
    ],
)
def test_what_is_let_through(model: LlamaModel, schema: Any, good: list[str], bad: list[str]) -> None:
    expected = dict.fromkeys(good, True) | dict.fromkeys(bad, False)
    assert {text: lets_through(model, schema, text) for text in expected} == expected


@pytest.mark.parametrize(
    ("schema", "parts"),
    [
        ({"type": "string", "pattern": "(?<=a)b"}, ["#", "pattern has (?<= (character 1)"]),
        ({"properties": {"age": {"pattern": "^\\p{L}$"}}}, ["#/properties/age", "\\p (character 2)"]),
        ({"pattern": "(a|b)*a(a|b){20}"}, ["too many rules"]),
        ({"pattern": "^(?:a{1,100}){1,100}$"}, ["too many rules"]),
        ({"pattern": "(" * 2001}, ["more than 2000 characters"]),
        ({"pattern": "(" * 1999}, ["too many rules"]),
        ({"pattern": 1}, ["pattern must be a string"]),
        ({"pattern": "^a$", "maxLength": 0}, ["no text"]),
        ({"minimum": 0, "minLength": 1}, ["needs a type"]),
        ({"type": "number", "multipleOf": 0}, ["multipleOf must be more than 0"]),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, ["no number"]),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, ["uniqueItems is supported for"]),
        ({"items": {"enum": [1, 1.0]}, "uniqueItems": True, "minItems": 2}, ["2 or more different items of 1"]),
        ({"propertyNames": {"enum": ["a"]}, "required": ["b"]}, ["propertyNames does not allow b"]),
        ({"propertyNames": {"anyOf": [{"enum": ["a"]}]}}, ["#/propertyNames"]),
        ({"type": "object", "minProperties": 2}, ["minProperties of more than 1"]),
        ({"properties": {"a": {}}, "minProperties": 1}, ["beside named properties"]),
        ({"patternProperties": {"a": {}, "b": {}}}, ["one pattern"]),
        ({"properties": {"a": {"$id": "x"}}}, ["#/properties/a", "$id within a schema"]),
        ({"$ref": "#typo"}, ["there is no #typo"]),
        ({"$ref": "#x/$defs/n", "$defs": {"n": {}}}, ["there is no #x/$defs/n"]),
        ({"$ref": "other.json#/a"}, ["not in this file"]),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, ["#/properties/a", "# must contain itself"]),
        ({"items": {"$ref": "#"}, "minItems": 1}, ["must contain itself"]),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, ["itself"]),
        ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, ["name each other"]),
        ({"allOf": [{"additionalProperties": False}, {"properties": {"a": {}}}]}, ["additionalProperties in one of"]),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, ["type in several schemas"]),
        ({"type": "text"}, ["type must be one of object, array"]),
        ({"type": []}, ["type must be one of"]),
        ({"type": "array", "items": [{"type": "null"}]}, ["prefixItems"]),
        ({"type": "array", "minItems": 3, "maxItems": 2}, ["minItems is more than maxItems"]),
        ({"type": "array", "minItems": 3, "items": False}, ["no array"]),
        ({"type": "string", "minLength": 1001}, ["minLength must be an integer from 0 to 1000"]),
        ({"type": "array", "maxItems": 1001}, ["maxItems must be an integer from 0 to 1000"]),
        ({"type": "string", "minLength": True}, ["minLength must be an integer"]),
        ({"type": "integer", "minimum": 5, "maximum": 4}, ["no number"]),
        ({"type": "integer", "minimum": "5"}, ["minimum must be a number"]),
        ({"not": {"type": "null"}}, ["not is not supported"]),
        ({"anyOf": [True], "type": "null"}, ["type beside anyOf"]),
        ({"anyOf": []}, ["#/anyOf", "a list of schemas"]),
        ({"allOf": []}, ["#/allOf", "a list of schemas"]),
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
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_expressed_is_refused(schema: Any, parts: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        schema_to_gbnf(schema)
    message = str(refused.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_formats_are_those_of_another_library(model: LlamaModel, form: str) -> None:
    check_texts(model, {"type": "string", "format": form}, 15)
    check_texts(model, {"type": "string", "format": form, "maxLength": 40}, 5)


def test_keywords_of_another_type_say_nothing(model: LlamaModel) -> None:
    assert lets_through(
        model, {"type": "null", "pattern": "(", "minLength": 3, "x-own": 1, "uniqueItems": True}, "null"
    )

"""Calls as Qwen's coders write them are held to what their schemas say, or `strict` is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from specrun.catalog import embedded
from specrun.constraints import grammar_text
from specrun.llama import LlamaModel
from specrun.llama.grammar import Grammar
from specrun.reading.form import AnswerForm
from specrun.serving.api_error import ApiError
from specrun.serving.expected import read_expected
from specrun.serving.tools import Tools, call_rules


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(embedded.TARGET) as model:
        yield model


def tools_of(schema: dict[str, Any], strict: bool = True) -> Tools:
    function = {"name": "find", "parameters": {"type": "object", **schema}, "strict": strict}
    body = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    tools = read_expected(body, AnswerForm(calls="coder")).tools
    assert tools
    return tools


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": "^x"}}},
        {"properties": {"a": {"type": "string", "format": "date"}}},
        {"properties": {"a": {"type": "string"}}, "required": ["a", "b"]},
        {"additionalProperties": {"type": "integer"}},
        {"propertyNames": {"enum": ["a"]}},
        {"properties": {"a": False}},
    ],
)
def test_what_cannot_be_held_is_refused_under_strict(schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="as strict asks") as refused:
        tools_of(schema)
    assert refused.value.param == "tools[0].function.parameters"
    tools_of(schema, strict=False)


def lets_through(model: LlamaModel, tools: Tools, argument: str) -> bool:
    expression, rules = call_rules("coder", tools)
    parameter = f"<parameter=a>\n{argument}\n</parameter>\n"
    text = f"<tool_call>\n<function=find>\n{parameter}</function>\n</tool_call>"
    with Grammar(grammar_text(expression, rules), model) as grammar:
        return grammar.is_complete(model.tokenize(text, add_special=False))


@pytest.mark.parametrize(
    ("argument", "good", "bad"),
    [
        ({"type": "string", "minLength": 1.0, "maxLength": 5.0}, ["abcde"], ["", "abcdef"]),
        ({"type": "string", "maxLength": 10**17}, ["abcde"], []),
        ({"type": "string", "enum": ["5", "x"]}, ["5", "x"], ["y"]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ['"5"', "null"], ["5", "x"]),
        ({"enum": ["5"]}, ['"5"'], ["5"]),
    ],
)
def test_arguments_that_strict_holds(model: LlamaModel, argument: Any, good: list[str], bad: list[str]) -> None:
    tools = tools_of({"properties": {"a": argument}, "required": ["a"]})
    texts = dict.fromkeys(good, True) | dict.fromkeys(bad, False)
    assert {text: lets_through(model, tools, text) for text in texts} == texts


def test_bounds_of_lengths_are_integers_without_strict_too(model: LlamaModel) -> None:
    tools = tools_of({"properties": {"a": {"type": "string", "maxLength": 5.0}}}, strict=False)
    assert lets_through(model, tools, "abcde")
    assert not lets_through(model, tools, "abcdef")

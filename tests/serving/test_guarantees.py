"""What a request may insist on: answers by a schema beside tools, arguments by a tool's schema, in each model's way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.constraints.rules import MOST_CHARACTERS, Rules, grammar_text
from specrun.llama import LlamaModel
from specrun.llama.grammar import Grammar
from specrun.serving.anthropic_messages import openai_body
from specrun.serving.refusals import ApiError
from specrun.serving.tools import call_rules, read_tools
from specrun.speculation.method import OFF
from tests.serving.running import CHAT, Json, Server, running
from tests.serving.templates import LLAMA31, QWEN3
from tests.serving.test_tools import (
    ASK,
    CALL_PIECES,
    CODER,
    END_PIECES,
    FORMAT,
    SCHEMA,
    TEMPLATES,
    TOOLS,
    scripted,
)


@pytest.mark.slow
def test_a_call_or_an_answer_by_the_schema(tmp_path: Path) -> None:
    fields = {"tools": TOOLS, "response_format": FORMAT, "max_tokens": 64}
    file = scripted(tmp_path / "calls.gguf", QWEN3, *CALL_PIECES, *END_PIECES)
    with running(file, plan=OFF.plan()) as calls:
        (call,) = calls.chat("x", **fields)["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo", "days": 3}
    file = scripted(tmp_path / "answers.gguf", QWEN3, b'{"city":', b' "Rome"', b', "days": 1', b"}")
    with running(file, plan=OFF.plan()) as answers:
        message = answers.chat("x", **fields)["choices"][0]["message"]
    assert (json.loads(message["content"]), message.get("tool_calls")) == ({"city": "Rome", "days": 1}, None)


@pytest.mark.slow
@pytest.mark.parametrize("pair", TEMPLATES.values(), ids=TEMPLATES, indirect=True)
def test_calls_or_answers_are_the_same_without_speculation(pair: tuple[Server, Server]) -> None:
    fields = {"tools": TOOLS, "response_format": FORMAT, "temperature": 1.2, "max_tokens": 200}
    for seed in range(3):
        answers = [server.post(CHAT, {"messages": ASK, **fields, "seed": seed})["choices"][0] for server in pair]
        texts = [answer["message"]["content"] or "" for answer in answers]
        assert texts[0] == texts[1]
        if answers[0]["finish_reason"] == "stop" and not texts[0].startswith("<") and texts[0]:
            assert json.loads(texts[0]).keys() == {"city", "days"}
        for call in answers[0]["message"].get("tool_calls", ()) if answers[0]["finish_reason"] == "tool_calls" else ():
            json.loads(call["function"]["arguments"])


def test_arguments_of_qwens_coders_are_json_unless_they_may_be_texts() -> None:
    parameters = {
        "type": "object",
        "properties": {
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "place": {"$ref": "#/$defs/place"},
            "unit": {"const": "C"},
            "free": True,
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
        "required": ["days", "place", "unit", "note"],
    }
    tools = read_tools({"tools": [{"type": "function", "function": {"name": "a", "parameters": parameters}}]})
    assert tools is not None
    text = "<tool_call><function=a>\n" + "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n"
        for name, value in (("days", "3"), ("place", '{"x": 1}'), ("unit", "C"), ("note", "any"))
    )
    end = "</function></tool_call>"
    with LlamaModel(embedded.TARGET) as model, Grammar(grammar_text(*call_rules("coder", tools)), model) as grammar:
        for good, bad in ((text, ""), ("3\n", "many\n"), ('{"x": 1}', "here"), ("\nC\n", "\nF\n")):
            given = text.replace(good, bad) + end if bad else text + end
            assert grammar.is_complete(model.tokenize(given, add_special=False)) == (not bad), given


ANY_ARGUMENTS: list[Json] = [
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": ["object"]},
    {"not": {"type": "null"}},
    {"description": "whatever"},
    {"type": "object", "minProperties": 2},
]


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ANY_ARGUMENTS, ids=str)
def test_a_call_has_arguments_although_its_parameters_are_not_named(tmp_path: Path, parameters: Json) -> None:
    text = b"<tool_call>\n<function=find>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
    file = scripted(tmp_path / "coder.gguf", CODER, text)
    tool = {"type": "function", "function": {"name": "find", "parameters": parameters}}
    with running(file, plan=OFF.plan()) as server:
        message = server.chat("x", tools=[tool], tool_choice="required", max_tokens=16)["choices"][0]["message"]
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [{"city": "Oslo"}]


def test_the_schemas_of_large_tools_give_way_to_those_of_small_ones() -> None:
    large = {"type": "object", "properties": {f"p{i}": {"enum": [f"{i}-{j}" for j in range(400)]} for i in range(60)}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "large", "parameters": large}}]
    read = read_tools({"tools": tools})
    assert read is not None
    assert (read.schemas["weather"], read.schemas["large"]) == (SCHEMA, {"type": "object"})
    tools[-1]["function"]["strict"] = True
    with pytest.raises(ApiError, match="too large together to enforce large"):
        read_tools({"tools": tools})


@pytest.mark.slow
def test_hundreds_of_large_tools_are_bounded_together_and_each_schema_is_converted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = list[int]()
    put = Rules.put
    monkeypatch.setattr(Rules, "put", lambda own, name, rule: (written.append(len(rule)), put(own, name, rule)))
    large = {"type": "object", "properties": {"p": {"enum": [f"{i:08}" for i in range(12_000)]}}}
    tools = [{"type": "function", "function": {"name": f"large-{i}", "parameters": large}} for i in range(100)]
    read = read_tools({"tools": [*tools, *TOOLS]})
    assert read is not None
    assert (read.schemas["weather"], read.schemas["large-99"]) == (SCHEMA, {"type": "object"})
    n_before = len(written)
    call_rules("hermes", read)
    assert len(written) == n_before
    assert sum(written) < 2 * MOST_CHARACTERS


@pytest.mark.slow
@pytest.mark.parametrize("template", [CODER, LLAMA31], ids=["coder", "llama"])
def test_strict_arguments_are_held_to_their_schema_whatever_the_choice(tmp_path: Path, template: str) -> None:
    begun = b"<tool_call>\n<function=weather>\n" if template == CODER else b'{"name": "weather", "parameters": {'
    file = scripted(tmp_path / "strict.gguf", template, begun + (b"<parameter=no" if template == CODER else b'"no'))
    strict = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
    with running(file, plan=OFF.plan()) as server:
        fields = {"tools": [strict], "max_tokens": 300, "temperature": 1.0, "parallel_tool_calls": False}
        choice = server.chat("x", **fields, seed=1)["choices"][0]
    for call in choice["message"].get("tool_calls", ()) if choice["finish_reason"] == "tool_calls" else ():
        assert json.loads(call["function"]["arguments"]).keys() == {"city", "days"}
    content = choice["message"]["content"] or ""
    assert not content.startswith("{")
    assert "<parameter=no" not in content


@pytest.mark.slow
def test_anthropics_fields_ask_for_the_same() -> None:
    wanted = {"type": "json_schema", "schema": SCHEMA}
    asked = {"max_tokens": 1, "messages": [], "tools": [{"name": "a", "input_schema": SCHEMA, "strict": True}]}
    for field in ({"output_config": {"format": wanted}}, {"output_format": wanted}):
        body = openai_body({**asked, **field})
        assert body["response_format"] == {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
        assert body["tools"][0]["function"]["strict"] is True
    with pytest.raises(ApiError, match=r"output_config\.format\.type must be json_schema"):
        openai_body({**asked, "output_config": {"format": {"type": "regex"}}})

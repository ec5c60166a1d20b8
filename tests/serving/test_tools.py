"""Calls of tools, reasoning and JSON over HTTP, whole and streamed, from models with templates of published ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specrun.catalog import embedded
from specrun.constraints.rules import grammar_text
from specrun.llama import LlamaModel
from specrun.llama.grammar import Grammar
from specrun.reading.form import AnswerForm
from specrun.serving.refusals import ApiError
from specrun.serving.tools import Tools, call_rules
from specrun.serving.wanted import read_expected
from specrun.speculation.method import OFF
from tests.models import CHAT_TEMPLATE, TOKEN_TYPES, edited, metadata_of, scripted_llama
from tests.serving.running import CHAT, Json, Server, messages, running
from tests.serving.templates import GPT_OSS, LLAMA31, OPEN_THINKING, QWEN3

SCHEMA: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock"}},
]
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
ENUMS: Json = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["<C>", "F\n"]}, "days": {"type": ["integer", "null"]}},
    "required": ["unit"],
}
CODER = QWEN3.replace("<tool_call>\\n{", "<tool_call>\\n<function=x>{")
TEMPLATES = {"qwen": QWEN3, "coder": CODER, "llama": LLAMA31, "gpt-oss": GPT_OSS}
STRICT = {"type": "function", "function": {"name": "a", "strict": True, "parameters": {"not": {"const": 1}}}}
ASK = messages("What is the weather in Oslo?")
CALL_PIECES = [
    b"<tool",
    b"_call>",
    b'\n{"name": "wea',
    b'ther", "argu',
    b'ments": {"city"',
    b': "Oslo", "days":',
    b" 3}",
]
END_PIECES = [b"}\n", b"</tool_", b"call>"]


def scripted(path: Path, template: str, *pieces: bytes) -> Path:
    return scripted_llama(path, pieces, metadata={CHAT_TEMPLATE: template})


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that thinks, says something and calls a tool."""
    pieces = [b"<thi", b"nk>\nhm < 3", b"\n</", b"think>\n\nI", b" look.\n", *CALL_PIECES, *END_PIECES]
    file = scripted(tmp_path_factory.mktemp("qwen") / "qwen.gguf", QWEN3, *pieces)
    with running(file, plan=OFF.plan()) as server:
        yield server


def joined(chunks: list[Json]) -> Json:
    """The message that a stream brought."""
    message: Json = {}
    calls: list[Json] = []
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        assert len(delta) <= 1 or delta == {"role": "assistant", "content": ""}
        for key in ("content", "reasoning_content"):
            if delta.get(key):
                message[key] = message.get(key, "") + delta[key]
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                calls.append({key: call[key] for key in ("id", "type", "function")})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message | ({"tool_calls": calls} if calls else {})


def test_reasoning_text_and_a_call(qwen: Server) -> None:
    body = {"messages": ASK, "tools": TOOLS, "max_tokens": 64}
    answer = qwen.post(CHAT, body)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm < 3", "I look.")
    details = answer["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": 2}
    last = qwen.stream(CHAT, {**body, "stream_options": {"include_usage": True}})[-1]
    assert last["usage"]["completion_tokens_details"] == details
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo", "days": 3}'}
    chunks = qwen.stream(CHAT, body)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    whole = joined(chunks)
    assert whole.pop("tool_calls")[0]["function"] == call["function"]
    assert whole == {"reasoning_content": "hm < 3", "content": "I look."}


def test_models_tells_what_the_model_can(qwen: Server) -> None:
    (model,) = qwen.client.get("/v1/models").json()["data"]
    assert model["capabilities"] == ["completion", "chat", "tools", "thinking"]


def test_without_tools_their_markers_are_text(qwen: Server) -> None:
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = qwen.chat("x", max_tokens=64, **fields)["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"].startswith("I look.\n<tool_call>")
    raw = qwen.chat("x", max_tokens=64, reasoning_format="none")["choices"][0]["message"]
    assert raw["content"].startswith("<think>\nhm < 3")
    assert "reasoning_content" not in raw


def test_a_call_that_is_cut_off_ends_by_length(qwen: Server) -> None:
    choice = qwen.post(CHAT, {"messages": ASK, "tools": TOOLS, "max_tokens": 10})["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city"'}


@pytest.mark.slow
def test_a_call_that_is_cut_leaves_no_part_of_its_tags(qwen: Server) -> None:
    for n in range(1, 20):
        message = qwen.post(CHAT, {"messages": ASK, "tools": TOOLS, "max_tokens": n})["choices"][0]["message"]
        assert not set("<>{}") & set(message["content"] or ""), n
        assert "<" not in message.get("reasoning_content", "").replace("hm < 3", ""), n


def test_the_next_turn_finds_the_call_in_the_cache(qwen: Server) -> None:
    first = qwen.post(CHAT, {"messages": ASK, "tools": TOOLS, "max_tokens": 64})
    message = first["choices"][0]["message"]
    answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"}
    usage = qwen.post(CHAT, {"messages": [*ASK, message, answer], "tools": TOOLS, "max_tokens": 4})["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > first["usage"]["prompt_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("text", ['{"name": "lamp", "arguments"', '{"name": "weather", "arguments": {"town"'])
def test_a_call_that_is_begun_must_be_well_formed(tmp_path: Path, text: str) -> None:
    file = scripted(tmp_path / "bad.gguf", QWEN3, b"<tool_call>", text.encode())
    with running(file, plan=OFF.plan()) as server:
        fields = {"tools": TOOLS, "max_tokens": 200, "temperature": 1.0, "seed": 3, "parallel_tool_calls": False}
        choice = server.chat("x", **fields)["choices"][0]
        message = choice["message"]
        assert not (message["content"] or "").startswith("<tool_call>" + text)
        if choice["finish_reason"] == "tool_calls":
            (call,) = message["tool_calls"]
            assert call["function"]["name"] in ("weather", "clock")
            json.loads(call["function"]["arguments"])


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose prompt ends within its reasoning, and which then writes JSON."""
    pieces = [b"I <think>", b" {so}", b"</think>", b"\n\n", b'{"city": "Oslo"', b', "days": 3}']
    file = scripted(tmp_path_factory.mktemp("thinking") / "thinking.gguf", OPEN_THINKING, *pieces)
    with running(file, plan=OFF.plan()) as server:
        yield server


def test_json_comes_behind_the_reasoning(thinking: Server) -> None:
    message = thinking.chat("x", response_format=FORMAT, max_tokens=32)["choices"][0]["message"]
    assert message["reasoning_content"] == "I <think> {so}"
    assert json.loads(message["content"]) == {"city": "Oslo", "days": 3}


def test_tools_that_a_model_cannot_call_are_refused(thinking: Server) -> None:
    status, error = thinking.refused(CHAT, {"messages": ASK, "tools": TOOLS})
    assert (status, error["param"]) == (400, "tools")


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that writes channels, whose markers are control tokens."""
    folder = tmp_path_factory.mktemp("gpt_oss")
    pieces = [b"<|channel|>", b"analysis", b"<|message|>", b"I look.", b"<|end|>", b"<|start|>"]
    file = scripted(folder / "plain.gguf", GPT_OSS, *pieces)
    types = list(metadata_of_file(file)[TOKEN_TYPES])
    for i in (-6, -4, -2, -1):
        types[i] = 3
    with running(edited(folder / "gpt_oss.gguf", file, {TOKEN_TYPES: types}), plan=OFF.plan()) as server:
        yield server


def metadata_of_file(file: Path) -> Any:
    import gguf

    return metadata_of(gguf.GGUFReader(file))


def test_channels_of_control_tokens(gpt_oss: Server) -> None:
    message = gpt_oss.chat("x")["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I look.", "")


def test_json_comes_in_the_final_channel(gpt_oss: Server) -> None:
    answer = gpt_oss.chat("x", response_format=FORMAT, max_tokens=200)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == "I look."
    assert message["content"] == "" or message["content"].startswith("{")


def test_gpt_oss_is_forced_to_call_one_named_tool_only(gpt_oss: Server) -> None:
    status, error = gpt_oss.refused(CHAT, {"messages": ASK, "tools": TOOLS, "tool_choice": "required"})
    assert (status, error["param"]) == (400, "tool_choice")


@pytest.mark.slow
@pytest.mark.parametrize("pair", TEMPLATES.values(), ids=TEMPLATES, indirect=True)
def test_forced_calls_are_well_formed_and_the_same_without_speculation(pair: tuple[Server, Server]) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    for seed in range(2):
        body = {"messages": ASK, "tools": TOOLS, "tool_choice": choice, "temperature": 1.2, "seed": seed}
        answers = [server.post(CHAT, {**body, "max_tokens": 200})["choices"][0] for server in pair]
        assert [answer["finish_reason"] for answer in answers] == ["tool_calls"] * 2
        calls = [answer["message"]["tool_calls"][0]["function"] for answer in answers]
        assert calls[0] == calls[1]
        assert calls[0]["name"] == "weather"
        arguments = json.loads(calls[0]["arguments"])
        assert set(arguments) == {"city", "days"}
        assert 1 <= arguments["days"] <= 9
        assert joined(pair[0].stream(CHAT, {**body, "max_tokens": 200}))["tool_calls"][0]["function"] == calls[0]


@pytest.mark.slow
@pytest.mark.parametrize("pair", [CODER], ids=["coder"], indirect=True)
def test_texts_without_quotes_are_those_of_an_enum(pair: tuple[Server, Server]) -> None:
    tool = {"type": "function", "function": {"name": "heat", "parameters": ENUMS}}
    body = {"messages": ASK, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "seed": 1}
    (call,) = pair[0].post(CHAT, {**body, "max_tokens": 100})["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["unit"] in ("<C>", "F\n")


@pytest.mark.slow
@pytest.mark.parametrize("pair", [QWEN3, GPT_OSS], ids=["qwen", "gpt-oss"], indirect=True)
def test_json_is_the_same_without_speculation(pair: tuple[Server, Server]) -> None:
    for fields in ({"response_format": FORMAT}, {"json_schema": SCHEMA}, {"response_format": {"type": "json_object"}}):
        body = {"messages": ASK, "temperature": 0.9, "seed": 4, "max_tokens": 120, **fields}
        answers = [server.post(CHAT, body)["choices"][0] for server in pair]
        assert answers[0] == answers[1]
        text = answers[0]["message"]["content"]
        if answers[0]["finish_reason"] == "stop" and text.startswith("{"):
            assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "lamp"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"json_schema": {"type": "object", "properties": {"a": {"pattern": "\\b"}}}}, "json_schema"),
        ({"json_schema": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}] * 2}}, "json_schema"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"chat_template_kwargs": 1}, "chat_template_kwargs"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "a", "strict": True, "parameters": {"not": {"const": 1}}}}
                ]
            },
            "tools[0].function.parameters",
        ),
    ],
)
def test_wrong_fields_are_refused(qwen: Server, fields: Json, param: str) -> None:
    status, error = qwen.refused(CHAT, {"messages": ASK, **fields})
    assert (status, error["param"]) == (400, param)


@pytest.mark.slow
def test_tools_whose_schema_cannot_be_expressed_are_held_to_json(tmp_path: Path) -> None:
    file = edited(tmp_path / "pair.gguf", embedded.TARGET, {CHAT_TEMPLATE: QWEN3})
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "minProperties": 2}}}
    with running(file) as server:
        body = {"messages": ASK, "tools": [tool], "tool_choice": "required", "max_tokens": 300, "seed": 2}
        choice = server.post(CHAT, body)["choices"][0]
        (call, *_) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "find"
        assert choice["finish_reason"] == "length" or isinstance(json.loads(call["function"]["arguments"]), dict)


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


@pytest.mark.slow
def test_bounds_of_lengths_are_integers_without_strict_too(model: LlamaModel) -> None:
    tools = tools_of({"properties": {"a": {"type": "string", "maxLength": 5.0}}}, strict=False)
    assert lets_through(model, tools, "abcde")
    assert not lets_through(model, tools, "abcdef")

"""/v1/responses: the real client of OpenAI talks with the server, and what it does not say is sent as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specrun.catalog import embedded
from specrun.serving.service import KeptResponses
from specrun.speculation.method import OFF
from tests.models import CHAT_TEMPLATE, edited, scripted_llama
from tests.serving.running import CHAT, NAME, Json, Server, running
from tests.serving.templates import QWEN3
from tests.serving.test_openai_tools import Report
from tests.serving.test_tools import CALL_PIECES, END_PIECES, SCHEMA

if TYPE_CHECKING:  # in every test process it would take a second
    import openai

PATH = "/v1/responses"
WEATHER: Json = {"type": "function", "name": "weather", "description": "Tells it.", "parameters": SCHEMA}
TOOLS: list[Any] = [WEATHER]
ASK = "Weather in Oslo?"
TEXT = "response.output_text"
WRONG_ITEM = {"content": "x"}
CALL = "response.function_call_arguments"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that thinks, says something and calls a tool."""
    pieces = [b"<think>", b"hm", b"</think>", b"\n\nI", b" look.\n", *CALL_PIECES, *END_PIECES]
    file = tmp_path_factory.mktemp("qwen") / "qwen.gguf"
    with running(scripted_llama(file, pieces, metadata={CHAT_TEMPLATE: QWEN3}), plan=OFF.plan()) as server:
        yield server


@pytest.fixture
def client(qwen: Server) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{qwen.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def events(server: Server, **body: Any) -> list[Json]:
    """The events of a stream. Their names are their types, and they are numbered."""
    with server.client.stream("POST", PATH, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line]
    told = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert lines[::2] == [f"event: {event['type']}" for event in told]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    return told


def n_prompt(server: Server, items: Any, **body: Any) -> int:
    """Tokens of the prompt that a request makes."""
    answer = server.post(PATH, {"input": items, "max_output_tokens": 1, **body})
    return int(answer["usage"]["input_tokens"])


def n_chat_prompt(server: Server, *messages: Json, **body: Any) -> int:
    answer = server.post(CHAT, {"messages": messages, "max_tokens": 1, **body})
    return int(answer["usage"]["prompt_tokens"])


def refused(server: Server, **body: Any) -> tuple[int, str, str]:
    """Status, field and message of a request that must fail."""
    status, error = server.refused(PATH, body)
    return status, error["param"], error["message"]


@pytest.mark.slow
def test_reasoning_text_and_a_call_are_items(client: openai.OpenAI) -> None:
    response = client.responses.create(model=NAME, input=ASK, tools=TOOLS, instructions="Be brief.")
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    thought, said, call = response.output
    assert thought.type == "reasoning"
    assert [(part.type, part.text) for part in thought.content or []] == [("reasoning_text", "hm")]
    assert (said.type, response.output_text) == ("message", "I look.")
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo", "days": 3})
    assert response.usage
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.instructions == "Be brief."


@pytest.mark.slow
def test_a_stream_has_the_same_items_piece_by_piece(client: openai.OpenAI, qwen: Server) -> None:
    whole = client.responses.create(model=NAME, input=ASK, tools=TOOLS)
    with client.responses.stream(model=NAME, input=ASK, tools=TOOLS) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    assert final.output_text == whole.output_text
    told = events(qwen, input=ASK, tools=TOOLS)
    kinds = [event["type"].removeprefix("response.") for event in told]
    assert list(dict.fromkeys(kinds)) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done", "output_text.delta", "output_text.done"),
        *("function_call_arguments.delta", "function_call_arguments.done", "completed"),
    ]
    ended = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert ended == told[-1]["response"]["output"]
    for i, item in enumerate(ended):
        own = [event for event in told if event.get("item_id") == item["id"]]
        assert {event["output_index"] for event in own} == {i}
        text = item.get("arguments") or item["content"][0]["text"]
        assert "".join(event.get("delta", "") for event in own) == text
        (done,) = [event for event in own if event["type"].endswith(("text.done", "arguments.done"))]
        assert text == done.get("text", done.get("arguments"))


@pytest.mark.slow
def test_the_next_turn_brings_items_back(client: openai.OpenAI, qwen: Server) -> None:
    first = client.responses.create(model=NAME, input=ASK, tools=TOOLS)
    output: list[Any] = [item.model_dump(exclude_none=True) for item in first.output]
    result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "rain"}
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ASK}]}
    second = client.responses.create(model=NAME, input=[asked, *output, result], tools=TOOLS, max_output_tokens=2)
    assert (second.status, second.output_text) == ("incomplete", "")
    assert second.incomplete_details
    assert second.incomplete_details.reason == "max_output_tokens"
    assert second.output[-1].status == "incomplete"
    assert second.usage
    assert second.usage.input_tokens_details.cached_tokens > 20
    call = {"name": "weather", "arguments": output[-1]["arguments"]}
    chat: list[Json] = [
        {"role": "user", "content": ASK},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": output[-1]["call_id"], "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": output[-1]["call_id"], "content": "rain"},
    ]
    function = {key: value for key, value in WEATHER.items() if key != "type"}
    tools = [{"type": "function", "function": function}]
    assert second.usage.input_tokens == n_chat_prompt(qwen, *chat, tools=tools)


@pytest.mark.slow
def test_earlier_responses_are_named_instead_of_sent(client: openai.OpenAI, qwen: Server) -> None:
    import openai

    first = client.responses.create(model=NAME, input=ASK, tools=TOOLS, instructions="Be brief.")
    result: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "rain"}
    output: list[Any] = [item.model_dump(exclude_none=True) for item in first.output]
    whole = n_prompt(qwen, [{"role": "user", "content": ASK}, *output, result], tools=TOOLS)
    assert n_prompt(qwen, [result], tools=TOOLS, previous_response_id=first.id) == whole, "instructions are not kept"
    references: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output[:2]]
    by_id = [{"role": "user", "content": ASK}, *references, {"id": first.output[2].id}, result]
    assert n_prompt(qwen, by_id, tools=TOOLS) == whole
    assert client.responses.retrieve(first.id).output_text == first.output_text

    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as failure:
        client.responses.create(model=NAME, input="And now?", previous_response_id=first.id)
    assert (failure.value.code, failure.value.param) == ("previous_response_not_found", "previous_response_id")
    assert refused(qwen, input=references)[:2] == (404, "input[0].id")
    unkept = client.responses.create(model=NAME, input=ASK, store=False)
    assert qwen.client.get(f"{PATH}/{unkept.id}").status_code == 404


def test_the_latest_responses_are_kept_within_a_bound() -> None:
    kept = KeptResponses(most_bytes=1000)
    for i in range(20):
        kept.keep({"id": f"r{i}", "output": [{"id": f"i{i}", "text": "x" * 100}]}, [])
    assert kept.find("r0") is kept.item("i0") is None
    assert (kept.find("r19"), kept.item("i19")) != (None, None)
    kept.keep({"id": "large", "output": [{"id": "i", "text": "x" * 1000}]}, [])
    assert kept.find("large") is None
    kept.forget("r19")
    kept.forget("r19")
    assert kept.find("r19") is kept.item("i19") is None


@pytest.mark.slow
def test_tools_of_a_namespace_are_called_by_their_own_names(tmp_path: Path) -> None:
    """As Codex declares the tools of an MCP server."""
    script = [b"<tool_call>", b'\n{"name": "home__', b'weather", "argu', b'ments": {}', b"}\n", b"</tool_call>"]
    space = {
        "type": "namespace",
        "name": "home",
        "description": "Of the house.",
        "tools": [{**WEATHER, "parameters": {}}],
    }
    file = scripted_llama(tmp_path / "q.gguf", script, metadata={CHAT_TEMPLATE: QWEN3})
    with running(file, plan=OFF.plan()) as server:
        # What runs on OpenAI's servers is left out beside functions, as Codex sends it unasked.
        answer = server.post(PATH, {"input": ASK, "tools": [space, {"type": "web_search"}]})
        (call,) = answer["output"]
        assert (call["namespace"], call["name"], call["arguments"]) == ("home", "weather", "{}")
        assert [tool["type"] for tool in answer["tools"]] == ["namespace"]
        result = {
            "type": "function_call_output",
            "call_id": call["call_id"],
            "output": [{"type": "input_text", "text": "rain"}],
        }
        again = [{"role": "user", "content": ASK}, call, result]
        flat = [again[0], {**call, "name": "home__weather", "namespace": ""}, result]
        assert n_prompt(server, again, tools=[space]) == n_prompt(server, flat, tools=[space])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded pair, with a template that has tools."""
    file = edited(tmp_path_factory.mktemp("pair") / "pair.gguf", embedded.TARGET, {CHAT_TEMPLATE: QWEN3})
    with running(file) as server:
        yield server


@pytest.mark.slow
def test_an_answer_is_parsed_into_a_class(pair: Server) -> None:
    import openai

    with openai.OpenAI(base_url=f"{pair.url}/v1", api_key="any", max_retries=0) as client:
        answer = client.responses.parse(
            model=NAME, input=ASK, text_format=Report, max_output_tokens=400, temperature=0.8, extra_body={"seed": 1}
        )
        assert isinstance(answer.output_parsed, Report)
        plain = client.responses.create(model=NAME, input=ASK, text={"format": {"type": "json_object"}})
        assert plain.output_text.startswith("{")


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_call_is_forced(pair: Server, choice: Any) -> None:
    answer = pair.post(PATH, {"input": ASK, "tools": TOOLS, "tool_choice": choice, "max_output_tokens": 200})
    assert answer["output"][0]["name"] == "weather"
    assert set(json.loads(answer["output"][0]["arguments"])) == {"city", "days"}


@pytest.mark.slow
def test_an_answer_without_a_word_is_a_message(tmp_path: Path) -> None:
    file = scripted_llama(tmp_path / "q.gguf", [b"<think>", b"hm", b"</think>"], metadata={CHAT_TEMPLATE: QWEN3})
    with running(file, plan=OFF.plan()) as server:
        output = server.post(PATH, {"input": ASK})["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]


@pytest.mark.slow
def test_what_is_wrong_is_told_in_the_fields_that_were_sent(qwen: Server) -> None:
    assert refused(qwen)[:2] == (400, "input")
    assert refused(qwen, input=[{"content": "x"}])[1:] == ("input[0].role", "input[0].role is missing")
    assert refused(qwen, input=[{"type": "web_search_call"}])[1] == "input[0].type"
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]
    assert "this model reads no input_image" in refused(qwen, input=image)[2]
    for tool in ({"type": "web_search"}, {"type": "mcp", "server_label": "a"}, {"type": "custom", "name": "a"}):
        assert f"cannot be {tool['type']}" in refused(qwen, input=ASK, tools=[tool])[2]
    for name, value in (("background", True), ("conversation", "c"), ("prompt", {"id": "p"})):
        assert refused(qwen, input=ASK, **{name: value})[1] == name
    assert refused(qwen, input=ASK, include=["message.output_text.logprobs"])[1] == "include"
    wrong = {"format": {"type": "json_schema", "name": "a", "schema": {"type": "no"}}}
    status, param, message = refused(qwen, input=ASK, text=wrong)
    assert (status, param) == (400, "text.format.schema")
    assert message.startswith("text.format.schema")
    bad = {"type": "function", "name": "a b"}
    assert refused(qwen, input=ASK, tools=[{"type": "web_search"}, bad])[1] == "tools[1].name"
    spaces = [*TOOLS, {"type": "namespace", "name": "s", "tools": [{"type": "function", "name": "c"}, bad]}]
    assert refused(qwen, input=ASK, tools=spaces)[1:] == (
        "tools[1].tools[1].name",
        "tools[1].tools[1].name must have letters, digits, _ and - only",
    )
    first = qwen.post(PATH, {"input": ASK})["id"]
    assert refused(qwen, previous_response_id=first, input=[WRONG_ITEM])[1] == "input[0].role"
    for metadata in ({"a": 1}, {"a": "x" * 513}, {"x" * 65: "a"}, {str(i): "" for i in range(17)}):
        assert refused(qwen, input=ASK, metadata=metadata)[1] == "metadata"
    assert refused(qwen, input=ASK, max_output_tokens=0)[1] == "max_output_tokens"
    assert refused(qwen, input=ASK, tools=TOOLS, tool_choice={"type": "file_search"})[1] == "tool_choice"
    status, error = qwen.refused(PATH, {"input": "a b " * 600})
    assert (status, error["code"]) == (400, "context_length_exceeded")


@pytest.mark.slow
def test_the_address_without_a_version(qwen: Server) -> None:
    assert qwen.post("/responses", {"input": ASK})["object"] == "response"

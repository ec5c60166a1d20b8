"""/v1/messages: the real client of Anthropic talks with the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specrun.reading.deltas import CallDelta, Delta
from specrun.serving import request_fields
from specrun.serving.anthropic_messages import content_json
from specrun.speculation.method import OFF
from tests.models import CHAT_TEMPLATE, scripted_llama
from tests.serving.running import NAME, Access, Server, running
from tests.serving.templates import QWEN3
from tests.serving.test_tools import CALL_PIECES, END_PIECES, SCHEMA

if TYPE_CHECKING:  # in every test process it would take a second
    import anthropic

pytestmark = pytest.mark.slow  # Anthropic's client takes over a second to import

TOOLS: list[Any] = [{"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}]
SYSTEM: list[Any] = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
ASK: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]}]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that thinks, says something and calls a tool."""
    pieces = [b"<think>", b"hm", b"</think>", b"\n\nI", b" look.\n", *CALL_PIECES, *END_PIECES]
    file = tmp_path_factory.mktemp("qwen") / "qwen.gguf"
    with running(scripted_llama(file, pieces, metadata={CHAT_TEMPLATE: QWEN3}), plan=OFF.plan()) as server:
        yield server


@pytest.fixture
def client(qwen: Server) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=qwen.url, api_key="any", max_retries=0) as client:
        yield client


def test_reasoning_text_and_a_call(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=NAME, max_tokens=64, system=SYSTEM, messages=ASK, tools=TOOLS)
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "tool_use", None)
    thinking, text, call = message.content
    assert (thinking.type, text.type, call.type) == ("thinking", "text", "tool_use")
    assert (thinking.thinking, text.text) == ("hm", "I look.")
    assert (call.name, call.input) == ("weather", {"city": "Oslo", "days": 3})
    assert message.usage.output_tokens > 10


def test_a_stream_brings_the_same(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model=NAME, max_tokens=64, messages=ASK, tools=TOOLS)
    kinds = []
    with client.messages.stream(model=NAME, max_tokens=64, messages=ASK, tools=TOOLS) as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_message()
    ids = [block.id if block.type == "tool_use" else "" for block in final.content]
    for block, own in zip(whole.content, ids, strict=True):
        if block.type == "tool_use":
            block.id = own
    assert [block.model_dump() for block in final.content] == [block.model_dump() for block in whole.content]
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3


def test_the_next_turn_is_answered(client: anthropic.Anthropic) -> None:
    first = client.messages.create(model=NAME, max_tokens=64, messages=ASK, tools=TOOLS)
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": [{"type": "text", "text": "rain"}]}
    conversation: list[Any] = [
        *ASK,
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    second = client.messages.create(model=NAME, max_tokens=8, messages=conversation, tools=TOOLS)
    assert second.stop_reason == "max_tokens"
    n_prompt = second.usage.input_tokens + second.usage.cache_read_input_tokens
    assert n_prompt == client.messages.count_tokens(model=NAME, messages=conversation, tools=TOOLS).input_tokens
    assert second.usage.cache_read_input_tokens > 20


def test_system_messages_between_the_others_stay_in_their_place(qwen: Server) -> None:
    def n_tokens(*talk: Any) -> int:
        body = {"model": NAME, "system": SYSTEM, "messages": list(talk)}
        return int(qwen.post("/v1/messages/count_tokens", body)["input_tokens"])

    reminder = {"role": "system", "content": "Be kind."}
    in_blocks = {"role": "system", "content": [{"type": "text", "text": "Be kind."}]}
    assert n_tokens(*ASK, reminder) == n_tokens(*ASK, in_blocks) > n_tokens(*ASK)
    body = {"messages": [{"role": "robot", "content": "x"}], "max_tokens": 4}
    assert "'user', 'assistant' or 'system'" in qwen.client.post("/v1/messages", json=body).json()["error"]["message"]


def test_the_last_message_of_the_assistant_is_continued(server: Server) -> None:
    import anthropic

    ask: list[Any] = [{"role": "user", "content": "def f(x):"}]
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        whole, begun = (client.messages.create(model=NAME, max_tokens=n, messages=ask) for n in (24, 8))
        ask.append({"role": "assistant", "content": begun.content})
        rest = client.messages.create(model=NAME, max_tokens=16, messages=ask)
    assert begun.content[0].text + rest.content[0].text == whole.content[0].text


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=NAME, max_tokens=64, messages=ASK, stop_sequences=["zz", " look"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " look")
    assert message.content[-1].text == "I"


def test_errors_have_anthropics_shape(qwen: Server, client: anthropic.Anthropic) -> None:
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match="tool_result"):
        client.messages.create(model=NAME, max_tokens=8, messages=[{"role": "user", "content": [{"type": "image"}]}])
    response = qwen.client.post("/v1/messages", json={"messages": []})
    assert response.status_code == 400
    assert response.json() == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "max_tokens is missing"},
    }
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 1024 maximum"):
        client.messages.create(model=NAME, max_tokens=8, messages=[{"role": "user", "content": "a b " * 600}])
    response = qwen.client.post("/v1/messages", content=b"{")
    assert json.loads(response.content)["error"]["type"] == "invalid_request_error"


def test_the_key(script: Path) -> None:
    import anthropic

    with running(script, plan=OFF.plan(), access=Access(key="secret")) as server:
        with anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0) as client:
            assert client.messages.create(model=NAME, max_tokens=8, messages=ASK).content[0].type == "text"
        with (
            anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError) as failure,
        ):
            client.messages.create(model=NAME, max_tokens=8, messages=ASK)
        assert_told(failure.value.response, 401, "authentication_error")
        assert failure.value.response.headers["www-authenticate"] == "Bearer"


def assert_told(response: Any, status: int, kind: str) -> None:
    """An error of this kind in Anthropic's shape."""
    assert response.status_code == status
    told = response.json()
    assert set(told) == {"type", "error"}
    assert set(told["error"]) == {"type", "message"}
    assert (told["type"], told["error"]["type"]) == ("error", kind)


def test_what_never_reaches_the_endpoint_is_told_in_the_same_shape(
    qwen: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert_told(qwen.client.get(path), 405, "invalid_request_error")
        assert_told(qwen.client.post(path, headers={"Origin": "null"}), 403, "permission_error")
    assert_told(qwen.client.post("/v1/messages/batches"), 404, "not_found_error")
    monkeypatch.setattr(request_fields, "MOST_BYTES", 100)
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert_told(qwen.client.post(path, json={"messages": ["x" * 200]}), 413, "request_too_large")
    assert qwen.refused("/v1/message", {})[0] == 404  # in OpenAI's


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        ('{"a": 1', {}),
        ('{"a": NaN}', {}),
        ('{"a": 1e999}', {}),
        ("[1]", {}),
    ],
)
def test_arguments_are_objects_of_whole_characters(arguments: str, value: Any) -> None:
    deltas = [Delta(call=CallDelta(0, "", "c1", "f")), Delta(call=CallDelta(0, arguments))]
    assert content_json(deltas) == [{"type": "tool_use", "id": "c1", "name": "f", "input": value}]

"""Ollama's addresses: its own client talks with the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from specrun.speculation.method import OFF
from tests.models import CHAT_TEMPLATE, scripted_llama
from tests.serving.running import CHAT, COMPLETIONS, NAME, Server, content, messages, running
from tests.serving.templates import QWEN3
from tests.serving.test_llama_server import FILL, filling
from tests.serving.test_queue import LONG, begin
from tests.serving.test_tools import CALL_PIECES, END_PIECES, SCHEMA

if TYPE_CHECKING:  # in every test process it would take a third of a second
    import ollama

TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
ASK = messages("def read_config(path):")
PROMPT = "def read_config(path):"


def client_of(server: Server) -> ollama.Client:
    import ollama

    return ollama.Client(host=server.url, trust_env=False)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    with client_of(server) as client:
        yield client


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that thinks, says something and calls a tool."""
    pieces = [b"<think>", b"hm", b"</think>", b"\n\nI", b" look.\n", *CALL_PIECES, *END_PIECES]
    file = tmp_path_factory.mktemp("qwen") / "qwen.gguf"
    with running(scripted_llama(file, pieces, metadata={CHAT_TEMPLATE: QWEN3}), plan=OFF.plan()) as server:
        yield server


def test_a_message_is_openais(server: Server, client: ollama.Client) -> None:
    answer = client.chat(NAME, ASK, options={"num_predict": 12})
    same = server.post(CHAT, {"messages": ASK, "max_tokens": 12})
    assert (answer.message.role, answer.message.content) == ("assistant", content(same))
    assert (answer.done, answer.done_reason, answer.eval_count, answer.model) == (True, "length", 12, NAME)
    assert answer.prompt_eval_count == same["usage"]["prompt_tokens"]
    assert answer.total_duration
    assert answer.eval_duration
    assert answer.total_duration >= answer.eval_duration
    assert datetime.fromisoformat(str(answer.created_at).replace("Z", "+00:00"))


def test_a_stream_brings_the_same(server: Server, client: ollama.Client) -> None:
    whole = client.chat(NAME, ASK, options={"num_predict": 24, "stop": ["return"]})
    *pieces, last = client.chat(NAME, ASK, options={"num_predict": 24, "stop": "return"}, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert not any(piece.done for piece in pieces)
    assert (last.done, last.message.content, last.eval_count) == (True, "", whole.eval_count)
    # Streams are what a request gets that says nothing of it.
    with server.client.stream("POST", "/api/chat", json={"messages": ASK}) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        assert [json.loads(line)["done"] for line in response.iter_lines()][-1] is True


def test_texts_with_a_system_message_and_raw(server: Server, client: ollama.Client) -> None:
    options = {"num_predict": 8}
    system = [{"role": "system", "content": "Be brief."}, *ASK]
    answer = client.generate(NAME, PROMPT, system="Be brief.", options=options)
    assert answer.response == content(server.post(CHAT, {"messages": system, "max_tokens": 8}))
    raw = client.generate(NAME, PROMPT, raw=True, options=options)
    assert raw.response == server.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 8})["choices"][0]["text"]
    pieces = client.generate(NAME, PROMPT, raw=True, options=options, stream=True)
    assert "".join(piece.response for piece in pieces) == raw.response


@pytest.mark.slow
def test_formats(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    for text in (
        client.chat(NAME, ASK, format=schema, options={"num_predict": 64}).message.content,
        client.generate(NAME, PROMPT, raw=True, format=schema, options={"num_predict": 64}).response,
    ):
        assert json.loads(text or "")["a"] in (1, 2)
    assert (client.chat(NAME, ASK, format="json").message.content or "").startswith("{")


@pytest.mark.slow
def test_reasoning_and_calls(thinker: Server) -> None:
    def assert_told(messages: list[ollama.Message]) -> None:
        assert "".join(message.thinking or "" for message in messages) == "hm"
        assert "".join(message.content or "" for message in messages) == "I look."
        (call,) = [call for message in messages for call in message.tool_calls or ()]
        assert (call.function.name, call.function.arguments) == ("weather", {"city": "Oslo", "days": 3})

    with client_of(thinker) as client:
        options = {"num_predict": 64}
        answer = client.chat(NAME, ASK, tools=TOOLS, options=options)
        assert answer.done_reason == "stop"
        assert_told([answer.message])
        assert_told([part.message for part in client.chat(NAME, ASK, tools=TOOLS, options=options, stream=True)])
        result = {"role": "tool", "tool_name": "weather", "content": "rain"}
        assert client.chat(NAME, [*ASK, answer.message, result], tools=TOOLS, options=options).message.content
        silent = client.chat(NAME, ASK, think=False, options=options)
        assert (silent.prompt_eval_count or 0) > (client.chat(NAME, ASK, options=options).prompt_eval_count or 0)
        assert client.generate(NAME, "x", options=options).thinking == "hm"


@pytest.mark.slow
def test_gaps_are_filled_where_the_model_can(tmp_path: Path, client: ollama.Client) -> None:
    import ollama

    with running(filling(tmp_path / "model.gguf", *FILL), plan=OFF.plan()) as server:
        same = server.post("/infill", {"input_prefix": "a(", "input_suffix": ")", "n_predict": 6})["content"]
        with client_of(server) as filler:
            assert filler.generate(NAME, "a(", suffix=")", options={"num_predict": 6}).response == same
            assert "insert" in (filler.show(NAME).capabilities or ())
    with pytest.raises(ollama.ResponseError, match="suffix is not possible"):
        client.generate(NAME, "a(", suffix=")")


def test_what_the_model_is(server: Server, client: ollama.Client) -> None:
    (model,) = client.list().models
    assert (model.model, model.size) == (NAME, server.service.loaded.model.llama_model.n_bytes)
    assert model.details
    assert (model.details.format, model.details.family, model.details.quantization_level) == ("gguf", "llama", "Q8_0")
    assert model.details.parameter_size == "7.34M"
    (loaded,) = client.ps().models
    assert (loaded.name, loaded.digest) == (NAME, model.digest)
    shown = client.show(NAME)
    assert shown.modelinfo
    assert shown.modelinfo["llama.context_length"] == 1024
    assert shown.modelinfo["general.parameter_count"] == 7344384
    assert shown.modelinfo["llama.attention.head_count"] == 8
    assert (shown.capabilities, shown.details and shown.details.family) == (["completion", "chat"], "llama")
    assert tuple(map(int, server.client.get("/api/version").json()["version"].split("."))) >= (0, 6, 4)


def test_a_request_without_a_text_loads_and_unloads(client: ollama.Client) -> None:
    assert client.chat(NAME, []).done_reason == "load"
    assert client.generate(NAME, "").done_reason == "load"
    assert client.generate(NAME, "", keep_alive=0).done_reason == "unload"


@pytest.mark.parametrize(
    ("path", "body", "status", "part"),
    [
        ("/api/chat", {"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
        ("/api/chat", {"messages": [{**ASK[0], "images": ["AAAA"]}]}, 400, "messages[0].images"),
        ("/api/chat", {"messages": ASK, "options": {"temperature": -1}}, 400, "temperature"),
        ("/api/chat", {"messages": ASK, "options": {"num_predict": "x"}}, 400, "options.num_predict"),
        ("/api/chat", {"messages": ASK, "tools": TOOLS}, 400, "tools cannot be used"),
        ("/api/chat", {"messages": messages("word " * 3000)}, 400, "maximum context length is 1024 tokens"),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, 400, "template"),
        ("/api/generate", {"prompt": 5}, 400, "prompt"),
        ("/api/generate", {"prompt": "x", "format": "xml"}, 400, "format must be json or a JSON schema"),
        ("/api/pull", {"model": "x"}, 404, "nothing at /api/pull"),
    ],
)
def test_errors_are_a_text(server: Server, path: str, body: dict[str, Any], status: int, part: str) -> None:
    response = server.client.post(path, json=body)
    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert part in response.json()["error"]


@pytest.mark.slow
def test_efforts_are_the_templates(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}{{ ' and long' * 9 if reasoning_effort == 'high' }}"
    file = scripted_llama(tmp_path / "model.gguf", [b"yes"], metadata={CHAT_TEMPLATE: template})
    with running(file, plan=OFF.plan()) as server, client_of(server) as client:
        efforts: list[Any] = ["high", "low", True]
        high, low, usual = (client.chat(NAME, ASK, think=think).prompt_eval_count or 0 for think in efforts)
        assert high > low == usual


@pytest.mark.slow
def test_a_stream_that_waits_is_kept_alive_by_lines_of_json(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specrun.serving.answers.KEEP_ALIVE_S", 0.01)
    with running(endless, plan=OFF.plan(), ctx_size=16_384) as server, ExitStack() as first:
        begin(server, first)
        client = first.enter_context(httpx2.Client(base_url=server.url, timeout=60, trust_env=False))
        body = {"prompt": LONG["prompt"], "raw": True, "options": {"num_predict": 4}}
        with client.stream("POST", "/api/generate", json=body) as response:
            lines = response.iter_lines()
            waiting = json.loads(next(lines))
            assert (waiting["response"], waiting["done"]) == ("", False)
            lines.close()


def test_fields_are_named_as_they_are_here(server: Server) -> None:
    for fields, name in (
        ({"options": {"temperature": "x"}}, "options.temperature"),
        ({"options": {"num_predict": 2**40}}, "options.num_predict"),
        ({"format": {"type": "no"}}, "format"),
    ):
        refused = server.client.post("/api/chat", json={"messages": ASK, **fields})
        assert refused.status_code == 400
        assert refused.json()["error"].startswith(f"{name} ")


@pytest.mark.slow
def test_no_number_of_tokens_is_no_limit(server: Server) -> None:
    body = {"messages": ASK, "stream": False, "options": {"num_predict": 0, "stop": ["e", " ", "a"]}}
    assert server.client.post("/api/chat", json=body).status_code == 200

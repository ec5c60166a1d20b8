"""What is wrong in a request is said in OpenAI's error object, and hurts nobody else."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest

from specrun.serving import request_fields
from tests.serving.running import CHAT, COMPLETIONS, Server, content, messages

TALK = messages("hello")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "many"}, "max_completion_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x"] * 100}, "stop"),
        ({"stop": "x" * 5000}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": 3}, "logit_bias"),
        ({"logit_bias": {"hello": 1}}, "logit_bias"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"logit_bias": {"5": "much"}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
    ],
)
def test_a_wrong_field_is_named(server: Server, fields: dict[str, Any], param: str) -> None:
    status, error = server.refused(CHAT, {"messages": TALK, **fields})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert param in error["message"]


@pytest.mark.parametrize("name", ["messages", "prompt"])
def test_a_prompt_that_does_not_fit_is_refused(server: Server, name: str) -> None:
    long, endless = "word " * 3000, "word " * 300_000
    for text in (long, endless):
        path, value = (CHAT, messages(text)) if name == "messages" else (COMPLETIONS, text)
        status, error = server.refused(path, {name: value})
        assert (status, error["code"]) == (400, "context_length_exceeded")
        # The words by which programs find out that they have to shorten what they send.
        assert error["message"].startswith("This model's maximum context length is 1024 tokens. However, your messages")
        assert re.search(r" resulted in (at least )?\d{4} tokens\.", error["message"])


@pytest.mark.parametrize(
    ("prompt", "part"),
    [
        ("", "empty"),
        ([], "prompt"),
        ([10**9], "token ids from 0 to"),
        ([-1], "token ids from 0 to"),
        ([["a"]], "token ids"),
        ([1, True], "token ids"),
        ([[1], [False]], "token ids"),
        (5, "prompt"),
    ],
)
def test_a_wrong_prompt_is_refused(server: Server, prompt: Any, part: str) -> None:
    assert part in server.refused(COMPLETIONS, {"prompt": prompt})[1]["message"]


def test_unknown_and_null_fields_are_ignored(server: Server) -> None:
    answer = server.chat("hello", user="me", temperature=None, stop=None, n=None, metadata={"a": 1}, max_tokens=4)
    assert content(answer)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"[]", "object"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 100_000, "deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too long"),
    ],
    ids=["half", "empty", "list", "bytes", "deep", "digits"],
)
def test_a_bad_body_is_refused(server: Server, body: bytes, part: str) -> None:
    response = server.client.post(CHAT, content=body)
    assert response.status_code == 400
    assert part in response.json()["error"]["message"]


HALVES = [b"\\ud83d", b"\\udcff", b"x\\uDE00\\uD83D", b"\xed\xa0\xbd"]
WITH_A_TEXT = [
    (CHAT, b'{"messages": [{"role": "user", "content": "%s"}]}'),
    (CHAT, b'{"messages": [{"role": "system", "content": "%s"}, {"role": "user", "content": "x"}]}'),
    (CHAT, b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "%s"}]}]}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "stop": "%s"}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": ["%s"]}}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": "%s"}}]}'),
    (COMPLETIONS, b'{"prompt": "%s"}'),
    ("/v1/messages", b'{"max_tokens": 4, "messages": [{"role": "user", "content": "%s"}]}'),
    ("/v1/messages", b'{"max_tokens": 4, "system": "%s", "messages": [{"role": "user", "content": "x"}]}'),
    ("/v1/messages/count_tokens", b'{"messages": [{"role": "user", "content": "%s"}]}'),
    ("/v1/responses", b'{"input": [{"type": "function_call_output", "call_id": "a", "output": "%s"}]}'),
    ("/tokenize", b'{"content": "%s"}'),
    ("/tokenize", b'{"%s": "x"}'),
]


@pytest.mark.slow
@pytest.mark.parametrize("half", HALVES)
def test_half_a_surrogate_pair_is_refused_wherever_it_is(server: Server, half: bytes) -> None:
    for path, body in WITH_A_TEXT:
        response = server.client.post(path, content=body % half)
        assert (response.status_code, "the body is not UTF-8" in response.text) == (400, True), (path, body)


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999", b"-1e400"])
def test_numbers_that_json_lacks_are_refused_wherever_they_are(server: Server, number: bytes) -> None:
    for body in (b'{"content": %s}', b'{"content": "x", "user": [{"a": %s}]}'):
        response = server.client.post("/tokenize", content=body % number)
        assert (response.status_code, number.decode() in response.text) == (400, True)


@pytest.mark.slow
def test_whole_pairs_and_nul_are_text(server: Server) -> None:
    for text in (b"\\ud83d\\ude00", b"a\\u0000b", b"\\\\ud83d"):
        response = server.client.post(CHAT, content=WITH_A_TEXT[0][1] % text)
        assert response.status_code == 200, response.text
    n_tokens = [server.chat(text, max_tokens=1)["usage"]["prompt_tokens"] for text in ("a", "a\0b and more")]
    assert n_tokens[0] < n_tokens[1]


def test_a_body_has_bounds_of_size_and_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_fields, "MOST_BYTES", 1000)
    assert server.refused(CHAT, {"messages": messages("x" * 2000)})[0] == 413
    monkeypatch.setattr(request_fields, "MOST_SECONDS", 0.01)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_there_is_nothing_elsewhere(server: Server) -> None:
    assert server.refused("/v1/nothing", {})[0] == 404
    response = server.client.get(CHAT)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.slow
def test_what_is_not_possible_is_said(server: Server) -> None:
    for field in ({"echo": True}, {"suffix": "x"}, {"best_of": 3}):
        assert server.refused(COMPLETIONS, {"prompt": "x", **field})[1]["param"] in field

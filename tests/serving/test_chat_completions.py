"""/v1/chat/completions: whole and streamed answers, several of them, their log-probabilities and their numbers."""

from __future__ import annotations

import pytest

from tests.serving.running import CHAT, NAME, Server, content, messages, streamed

ASK = "def read_config(path):"


def test_an_answer_has_openais_shape(server: Server) -> None:
    answer = server.chat(ASK, max_tokens=8)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == NAME
    assert answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    usage = answer["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8


def test_timings_tell_what_speculation_did(server: Server) -> None:
    timings = server.chat(ASK, max_tokens=64)["timings"]
    assert timings["predicted_n"] == 64
    assert timings["draft_n"] > timings["draft_n_accepted"] > 0
    passes = 64 - timings["draft_n_accepted"]
    assert timings["tokens_per_pass"] == pytest.approx(64 / passes, abs=1e-3)


@pytest.mark.slow
def test_a_stream_brings_the_same_text_in_pieces(server: Server) -> None:
    whole = server.chat(ASK, max_tokens=48)
    chunks = server.stream(CHAT, {"messages": messages(ASK), "max_tokens": 48})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert streamed(chunks) == content(whole)
    assert len(chunks) > 4
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[-1]["timings"]["predicted_n"] == 48


def test_a_stream_ends_with_usage_where_it_is_asked_for(server: Server) -> None:
    body = {"messages": messages(ASK), "max_tokens": 8, "stream_options": {"include_usage": True}}
    *others, last = server.stream(CHAT, body)
    assert all("usage" not in chunk for chunk in others)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8


@pytest.mark.slow
def test_several_answers_have_seeds_in_a_row_and_one_prompt(server: Server) -> None:
    fields = {"temperature": 1.0, "max_tokens": 12}
    answer = server.chat(ASK, n=3, seed=5, **fields)
    alone = [content(server.chat(ASK, seed=5 + i, **fields)) for i in range(3)]
    assert [content(answer, i) for i in range(3)] == alone
    assert len(set(alone)) > 1
    usage = answer["usage"]
    assert usage["completion_tokens"] == 36
    assert usage["prompt_tokens"] == server.chat(ASK)["usage"]["prompt_tokens"]
    chunks = server.stream(CHAT, {"messages": messages(ASK), "n": 3, "seed": 5, **fields})
    assert [streamed(chunks, i) for i in range(3)] == alone


@pytest.mark.slow
def test_without_a_seed_each_request_has_another(server: Server) -> None:
    fixed = server.service.defaults
    assert content(server.chat(ASK, temperature=1.5)) == content(server.chat(ASK, temperature=1.5)), fixed
    # Without an end, because two answers may well be empty.
    texts = {content(server.chat(ASK, temperature=1.5, seed=-1, ignore_eos=True)) for _ in range(3)}
    assert len(texts) == 3


@pytest.mark.slow
def test_a_stop_text_ends_the_answer_before_it(server: Server) -> None:
    whole = content(server.chat(ASK, max_tokens=48))
    stop = whole[20:24]
    answer = server.chat(ASK, max_tokens=48, stop=[stop, "never written"])
    assert content(answer) == whole[: whole.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert streamed(server.stream(CHAT, {"messages": messages(ASK), "stop": stop})) == content(answer)


@pytest.mark.slow
def test_content_may_come_in_parts(server: Server) -> None:
    parts = [{"type": "text", "text": "def read_config"}, {"type": "text", "text": "(path):"}]
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": parts}]})
    assert content(answer) == content(server.chat("def read_config\n(path):"))


def test_logprobs_come_with_each_token(server: Server) -> None:
    answer = server.chat(ASK, max_tokens=16, logprobs=True, top_logprobs=3)
    tokens = answer["choices"][0]["logprobs"]["content"]
    assert len(tokens) == 16
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == content(answer)
    for token in tokens:
        top = token["top_logprobs"]
        assert len(top) == 3
        assert (token["token"], token["logprob"]) == (top[0]["token"], top[0]["logprob"]), "greedy takes the likeliest"
        assert 0 >= top[0]["logprob"] >= top[1]["logprob"] >= top[2]["logprob"]
    body = {"messages": messages(ASK), "max_tokens": 16, "logprobs": True, "top_logprobs": 3}
    choices = [choice for chunk in server.stream(CHAT, body) for choice in chunk["choices"]]
    assert [one for choice in choices if choice["logprobs"] for one in choice["logprobs"]["content"]] == tokens


@pytest.mark.slow
def test_logprobs_end_before_a_stop_text(server: Server) -> None:
    whole = content(server.chat(ASK, max_tokens=48))
    answer = server.chat(ASK, max_tokens=48, stop=whole[20:24], logprobs=True)
    tokens = answer["choices"][0]["logprobs"]["content"]
    written = b"".join(bytes(token["bytes"]) for token in tokens).decode()
    assert written.startswith(content(answer))
    assert len(written) - len(tokens[-1]["token"]) < len(content(answer)), "a token of the stop text alone was told"


def test_a_bias_forbids_or_forces_a_token(server: Server) -> None:
    first = server.chat(ASK, max_tokens=1, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"][0]
    second = first["top_logprobs"][1]
    without = server.chat(ASK, max_tokens=1, logit_bias={str(first["id"]): False})
    assert content(without) == second["token"]
    forced = server.chat(ASK, max_tokens=4, logit_bias=[[second["id"], 100]])
    assert content(forced) == 4 * second["token"]


@pytest.mark.slow
def test_the_last_message_of_the_assistant_is_continued(server: Server) -> None:
    begun = content(server.chat("def f(x):", max_tokens=8))
    whole = content(server.chat("def f(x):", max_tokens=24))
    answer = server.chat("def f(x):", begun, max_tokens=16)
    assert begun + content(answer) == whole
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 8
    assert begun + streamed(server.stream(CHAT, {"messages": messages("def f(x):", begun), "max_tokens": 16})) == whole
    body = {"messages": messages("def f(x):", begun), "response_format": {"type": "json_object"}}
    assert server.refused(CHAT, body)[1]["param"] == "messages"

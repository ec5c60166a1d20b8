"""/v1/completions: prompts as text and as tokens, one and several."""

from __future__ import annotations

from tests.serving.running import COMPLETIONS, Server

PROMPT = "def read_config(path):\n"


def test_it_continues_the_prompt(server: Server) -> None:
    answer = server.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 8})
    assert answer["object"] == "text_completion"
    (choice,) = answer["choices"]
    assert choice["text"]
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
    assert answer["usage"]["completion_tokens"] == 8


def test_tokens_are_as_good_as_their_text(server: Server) -> None:
    text = server.post(COMPLETIONS, {"prompt": PROMPT})
    tokens = server.post("/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
    assert server.post(COMPLETIONS, {"prompt": tokens})["choices"] == text["choices"]


def test_several_prompts_have_an_answer_each(server: Server) -> None:
    prompts = [PROMPT, "import os\n"]
    answer = server.post(COMPLETIONS, {"prompt": prompts, "n": 2})
    alone = [server.post(COMPLETIONS, {"prompt": prompt}) for prompt in prompts]
    texts = [one["choices"][0]["text"] for one in alone]
    assert [choice["text"] for choice in answer["choices"]] == [texts[0], texts[0], texts[1], texts[1]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)


def test_a_stream_brings_the_same_text_and_offsets(server: Server) -> None:
    body = {"prompt": PROMPT, "max_tokens": 24, "logprobs": 2}
    (whole,) = server.post(COMPLETIONS, body)["choices"]
    chunks = server.stream(COMPLETIONS, body)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        pieces = [one for choice in choices if choice["logprobs"] for one in choice["logprobs"][name]]
        assert pieces == whole["logprobs"][name]
    for token, offset in zip(whole["logprobs"]["tokens"], whole["logprobs"]["text_offset"], strict=True):
        assert whole["text"][offset:].startswith(token)

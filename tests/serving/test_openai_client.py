"""OpenAI's own package understands everything that the server answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from specrun.serving.refusals import Access
from tests.serving.running import Server, running

if TYPE_CHECKING:  # in every test process it would take a second
    import openai

ASK = [{"role": "user", "content": "def read_config(path):"}]


@pytest.fixture(scope="module")
def keyed() -> Iterator[Server]:
    with running(access=Access("secret")) as server:
        yield server


@pytest.fixture(scope="module")
def client(keyed: Server) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="secret", max_retries=0) as client:
        yield client


def test_messages_whole_and_streamed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="any", messages=ASK, max_tokens=16, logprobs=True, top_logprobs=2)
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert choice.logprobs
    assert choice.logprobs.content
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    assert answer.usage
    assert answer.usage.prompt_tokens_details
    pieces = list(
        client.chat.completions.create(
            model="any", messages=ASK, max_tokens=16, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(choice.delta.content or "" for piece in pieces for choice in piece.choices)
    assert text == choice.message.content
    assert pieces[-1].usage
    assert pieces[-1].usage.completion_tokens == 16


def test_text_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="any", prompt=["import os", "class A:"], max_tokens=8, logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs
    assert "".join(answer.choices[0].logprobs.tokens or []) == answer.choices[0].text


def test_models(client: openai.OpenAI) -> None:
    import openai

    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").owned_by == "specrun"
    with pytest.raises(openai.NotFoundError, match="there is no model other; this server has small"):
        client.models.retrieve("other")


@pytest.mark.slow
def test_errors(client: openai.OpenAI, keyed: Server) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="any", messages=ASK, temperature=-1)
    with (
        openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError, match="key"),
    ):
        other.models.list()

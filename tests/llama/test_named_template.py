"""llama.cpp's own chat templates."""

from __future__ import annotations

import pytest

from specrun.errors import PromptError
from specrun.llama import named_template
from specrun.llama.chat_template import Message
from specrun.llama.named_template import CHATML, NamedTemplate


def test_chatml_in_full() -> None:
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße"}]
    turns = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGrüße<|im_end|>\n"
    assert NamedTemplate(CHATML).render(messages) == f"{turns}<|im_start|>assistant\n"
    assert NamedTemplate(CHATML).render(messages, add_generation_prompt=False) == turns


@pytest.mark.parametrize("name", ["llama3", "gemma", "mistral-v7"])
def test_names_of_llama_cpp_render(name: str) -> None:
    assert name in named_template.names()
    assert "Hello" in NamedTemplate(name).render([{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("content", ["a\0b", "\0", "\0a\0\0", "\ue000\0\ue001\x01", "a\nb\ue000"])
def test_a_message_is_whole_in_every_template(role: str, content: str) -> None:
    messages: list[Message] = [{"role": "user", "content": "hello"}, {"role": "user", "content": "x"}]
    messages[1] = {"role": role, "content": content}
    for name in named_template.names():
        assert content in NamedTemplate(name).render(messages), name


@pytest.mark.parametrize("content", ["a \ud83d b", "\udcff", "\ude00\ud83d"])
def test_lone_surrogates_are_refused(content: str) -> None:
    for name in named_template.names():
        with pytest.raises(PromptError, match=r"not UTF-8 .* is a lone surrogate"):
            NamedTemplate(name).render([{"role": "user", "content": content}])

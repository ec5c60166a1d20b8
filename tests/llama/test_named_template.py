"""llama.cpp's own chat templates."""

from __future__ import annotations

import pytest

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

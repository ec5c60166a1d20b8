"""Prompts of conversations: with and without thinking, and what marks the parts of answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.engine.chat_format import ChatFormat
from specrun.llama import LlamaModel
from specrun.llama.chat_template import Message
from tests.models import CHAT_TEMPLATE, edited
from tests.serving.templates import GPT_OSS, OPEN_THINKING, QWEN3

ASKED: list[Message] = [{"role": "user", "content": "why?"}]


@pytest.mark.parametrize(
    ("template", "thinking", "not_thinking"),
    [
        (QWEN3, "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        (OPEN_THINKING, "<|assistant|><think>\n", "<|assistant|><think>\n\n</think>\n\n"),
        (GPT_OSS, "Reasoning: medium", "Reasoning: low"),
        # Granite's, DeepSeek's and Seed's names for it.
        (
            "{{ messages[0].content }}{{ thinking is defined and not thinking }}{{ thinking_budget }}",
            "False",
            "True0",
        ),
        (None, "<|im_start|>assistant\n", "<|im_start|>assistant\n"),
    ],
)
def test_a_model_is_asked_not_to_think(
    script: Path, tmp_path: Path, template: str | None, thinking: str, not_thinking: str
) -> None:
    with LlamaModel(edited(tmp_path / "model.gguf", script, {CHAT_TEMPLATE: template})) as model:
        chat_format = ChatFormat(model)
        assert thinking in chat_format.prompt(ASKED)
        prompt = chat_format.prompt(ASKED, thinks=False)
        assert not_thinking in prompt
        assert not chat_format.form.is_thinking(prompt)
        assert "<think>\n\n</think>" not in chat_format.prompt(ASKED)

"""Prompts of conversations: with and without thinking, and what marks the parts of answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.decoding.chat_format import ChatFormat, is_begun
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


BEGUN: Message = {"role": "assistant", "content": "Because "}
FINAL = "<|start|>assistant<|channel|>final<|message|>Because "
ANALYSIS = "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>"


@pytest.mark.parametrize(
    ("template", "bare", "with_thoughts", "thoughts_alone"),
    [
        (
            QWEN3,
            "assistant\n<think>\n\n</think>\n\nBecause ",
            "assistant\n<think>\nhm\n</think>\n\nBecause ",
            "assistant\n<think>\nhm\n</think>\n\n",
        ),
        (
            OPEN_THINKING,
            "<|assistant|><think>\n\n</think>\n\nBecause ",
            "<|assistant|><think>\nhm\n</think>\n\nBecause ",
            "<|assistant|><think>\nhm\n</think>\n\n",
        ),
        (GPT_OSS, FINAL, ANALYSIS + FINAL, ANALYSIS + "<|start|>assistant"),
        (None, "assistant\nBecause ", "assistant\nBecause ", "assistant\n"),
    ],
)
def test_the_last_message_of_the_assistant_goes_on(
    script: Path, tmp_path: Path, template: str | None, bare: str, with_thoughts: str, thoughts_alone: str
) -> None:
    with LlamaModel(edited(tmp_path / "model.gguf", script, {CHAT_TEMPLATE: template})) as model:
        chat_format = ChatFormat(model)
        thinking: Message = {"role": "assistant", "content": "", "thinking": "hm", "reasoning_content": "hm"}
        assert chat_format.prompt([*ASKED, BEGUN]).endswith(bare)
        assert chat_format.prompt([*ASKED, {**thinking, "content": "Because "}]).endswith(with_thoughts)
        assert chat_format.prompt([*ASKED, thinking]).endswith(thoughts_alone)
        assert chat_format.prompt([*ASKED, {"role": "assistant", "content": ""}]) == chat_format.prompt(ASKED)
        calls: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
        }
        assert not is_begun([calls])

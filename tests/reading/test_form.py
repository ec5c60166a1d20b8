"""A model's template tells how it marks the parts of its answers."""

from __future__ import annotations

import pytest

from specrun.reading.form import AnswerForm, answer_form
from tests.serving.templates import GPT_OSS, LLAMA31, OPEN_THINKING, QWEN3


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (QWEN3, AnswerForm("hermes", thinks=True, takes_text=True)),
        (QWEN3.replace("<tool_call>", "<tool_call><function=x>"), AnswerForm("coder", thinks=True, takes_text=True)),
        (LLAMA31, AnswerForm("llama3")),
        (GPT_OSS, AnswerForm("harmony")),
        (OPEN_THINKING, AnswerForm(thinks=True)),
        ("{{ messages[0].content }}", AnswerForm()),
        ("{{ tools }}<tool_call>{{ name }}<arg_key>", AnswerForm()),
        ("{{ tools }}<|start_header_id|><|python_tag|><function={{ name }}>", AnswerForm()),
        ('{{ tools }}{{ "<tool_call>\\n{\\"name\\": " }}', AnswerForm("hermes")),
    ],
)
def test_the_form(template: str, form: AnswerForm) -> None:
    assert answer_form(template) == form

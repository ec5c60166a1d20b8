"""Conversations with tools reach the model's own template in the way that it expects."""

from __future__ import annotations

from typing import Any

import pytest

from specrun.llama.chat_template import ChatTemplate
from specrun.reading.form import answer_form
from specrun.serving.prompts import read_messages
from specrun.serving.refusals import ApiError
from specrun.serving.tools import read_tools
from tests.serving.templates import GPT_OSS, LLAMA31, QWEN3

ARGUMENTS = '{"city":"Oslo"}'
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "in Oslo?"}]},
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]


def rendered(source: str, messages: list[dict[str, Any]] = CONVERSATION, **variables: Any) -> str:
    body = {"messages": messages, "tools": [TOOL]}
    tools = read_tools(body)
    assert tools
    read = read_messages(body, answer_form(source))
    return ChatTemplate(source, "<s>", "</s>").render(read, tools=tools.declared, variables=variables)


def test_qwen_gets_the_text_that_it_wrote() -> None:
    text = rendered(QWEN3)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert '\n{"type": "function", "function": {"name": "weather", "description": "", "parameters": ' in text
    assert "<|im_start|>user\nWeather\nin Oslo?<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\n" in text
    assert f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call><|im_end|>' in text
    assert text.endswith("<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
    assert rendered(QWEN3, enable_thinking=False).endswith("<think>\n\n</think>\n\n")


def test_llama_gets_objects() -> None:
    text = rendered(LLAMA31)
    assert text.startswith("<s>")
    assert '{"name": "weather", "parameters": {"city": "Oslo"}}<|eot_id|>' in text
    assert '<|start_header_id|>ipython<|end_header_id|>\n\n"rain"<|eot_id|>' in text
    asked = rendered(LLAMA31, CONVERSATION[:2])
    assert '{\n    "type": "function",\n    "function": {' in asked


def test_gpt_oss_gets_its_channels() -> None:
    text = rendered(GPT_OSS, reasoning_effort="high")
    assert "Reasoning: high" in text
    assert (
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>' in text
    )
    assert "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>" in text
    assert '<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"rain"<|end|>' in text
    with_text = [*CONVERSATION[:2], {**CONVERSATION[2], "content": "I look."}, CONVERSATION[3]]
    assert "<|channel|>analysis<|message|>I look.<|end|>" in rendered(GPT_OSS, with_text)


def test_half_a_character_in_a_calls_arguments_is_replaced() -> None:
    function = {"name": "weather", "arguments": '{"city": "\\ud83d", "at": "\\ud83d\\ude00"}'}
    called = [*CONVERSATION[:2], {"role": "assistant", "tool_calls": [{"id": "c1", "function": function}]}]
    assert '{"city": "\ufffd", "at": "\U0001f600"}' in rendered(LLAMA31, called)


def test_half_of_an_object_is_passed_on_as_text() -> None:
    function = {"name": "weather", "arguments": '{"city": "Os'}
    cut_off = [*CONVERSATION[:2], {"role": "assistant", "tool_calls": [{"id": "c1", "function": function}]}]
    assert '"parameters": "{\\"city\\": \\"Os"' in rendered(LLAMA31, cut_off)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("text", "messages[0]"),
        ({"role": "robot", "content": ""}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content"),
        ({"role": "assistant", "content": "a", "tool_calls": [{}]}, "messages[0].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": 1}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "tool", "content": "a", "tool_call_id": 1}, "messages[0].tool_call_id"),
    ],
)
def test_wrong_messages_are_refused(message: Any, param: str) -> None:
    with pytest.raises(ApiError) as raised:
        read_messages({"messages": [message]}, answer_form(QWEN3))
    assert raised.value.param == param

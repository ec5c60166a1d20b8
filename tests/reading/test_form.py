"""A model's template tells how it marks the parts of its answers. A reader tells the same however the text is cut into
pieces, and no half of a marker is ever told.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from specrun.reading.deltas import Reader
from specrun.reading.form import AnswerForm, HarmonyReader, HermesReader, Llama3Reader, ThinkingReader, answer_form
from tests.reading.told import Told, told, told_however_cut
from tests.serving.templates import GPT_OSS, LLAMA31, OPEN_THINKING, QWEN3

TOOLS: dict[str, Any] = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "clock": {"type": "object", "properties": {}},
}
hermes = partial(HermesReader, TOOLS)
llama3 = partial(Llama3Reader, TOOLS)


def thinking(is_open: bool = False) -> Reader:
    return ThinkingReader(Reader(), is_open)


OSLO = '{"city": "Oslo"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {OSLO}}}\n</tool_call>'
HARD = '{"city": "a } ] \\" \\\\", "more": [{"x": "</tool_call>"}, 1.5e3, null]}'


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<think>\nhm < 3\n</think>\n\nyes <think>", "yes <think>", "hm < 3"),
        ("\n<think>a\n\n b</think>c", "c", "a\n\n b"),
        ("<think>\n\n</think>\n\nyes", "yes", ""),
        ("<think>never ends </thin", "", "never ends </thin"),
        ("<think>", "", ""),
        ("  plain </think> text ", "  plain </think> text ", ""),
        ("<thin", "<thin", ""),
        ("", "", ""),
    ],
)
def test_thinking(text: str, content: str, reasoning: str) -> None:
    assert told_however_cut(thinking, text) == Told(content, reasoning)


def test_thinking_that_the_prompt_began() -> None:
    result = told_however_cut(partial(thinking, True), "\nI think\n</think>\n\nyes\n")
    assert result == Told("yes\n", "I think")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no call <tool", Told("no call <tool")),
        ("no call \n\n", Told("no call \n\n")),
        (CALL, Told(calls=[("weather", OSLO)])),
        (f"I look.\n{CALL}\n", Told("I look.", calls=[("weather", OSLO)])),
        (f"{CALL}\n{CALL}", Told(calls=[("weather", OSLO)] * 2)),
        (f"{CALL}\n\nThat is  all\n", Told("That is  all\n", calls=[("weather", OSLO)])),
        ('<tool_call>{"name": "clock"}</tool_call>', Told(calls=[("clock", "{}")])),
        ('<tool_call>{"name": "clock", "arguments": {}}', Told(calls=[("clock", "{}")])),
        (f'<tool_call>{{"arguments": {HARD}, "name": "weather"}}</tool_call>', Told(calls=[("weather", HARD)])),
        (f'<tool_call>{{"name":"weather","arguments":{HARD}}}</tool_call>', Told(calls=[("weather", HARD)])),
        ('<tool_call>{"name": "clock", "arguments": "{\\"a\\": 1}"}</tool_call>', Told(calls=[("clock", '{"a": 1}')])),
        ('<tool_call>{"name": "weather", "arguments": {"city": "Os', Told(calls=[("weather", '{"city": "Os')])),
        ('a<tool_call>{"nam', Told('a<tool_call>{"nam')),
        ("a <tool_call>\n", Told("a<tool_call>\n")),
        ('<tool_call>{"name": "\\ud83d", "arguments": "\\ud83d\\ude00"}', Told(calls=[("\ufffd", "\U0001f600")])),
        ("<tool_call>\nno JSON</tool_call> b", Told("<tool_call>\nno JSON</tool_call> b")),
        ('<tool_call>{"a": 1}</tool_call>', Told('<tool_call>{"a": 1}</tool_call>')),
    ],
)
def test_hermes(text: str, expected: Told) -> None:
    assert told_however_cut(hermes, text) == expected


def test_calls_of_qwens_coders() -> None:
    text = (
        "Look:\n<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n"
        '<parameter=note>\na "b"\nc\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=clock>\n</function>\n"
        "</tool_call>"
    )
    arguments = '{"city": "12", "days": 3, "note": "a \\"b\\"\\nc"}'
    assert told_however_cut(hermes, text) == Told("Look:", calls=[("weather", arguments), ("clock", "{}")])
    numbers = (
        "<tool_call><function=f><parameter=a>NaN</parameter><parameter=b> [1.50]</parameter></function></tool_call>"
    )
    assert told_however_cut(hermes, numbers) == Told(calls=[("f", '{"a": "NaN", "b": [1.50]}')])
    broken = "<tool_call><other>"
    assert told_however_cut(hermes, broken) == Told(broken)
    cut_off = text[: text.index("3\n")]
    assert told_however_cut(hermes, cut_off) == Told("Look:", calls=[("weather", '{"city": "12"')])


@pytest.mark.parametrize("rest", [CALL, "<tool_call><function=clock>\n</function>\n</tool_call>"])
def test_no_part_of_a_tag_is_told_wherever_a_text_is_cut(rest: str) -> None:
    for text in (f"<think>hm</think>\n\nI look.\n{rest}\n{rest}", f"{rest}\n{rest}"):
        for end in range(len(text) + 1):
            reader = partial(ThinkingReader, HermesReader(TOOLS), False)
            result = told(reader, text[:end], is_cut=True)
            assert "I look.".startswith(result.content.strip()), text[:end]
            assert result.reasoning in ("", "h", "hm"), text[:end]


def test_only_calls_are_left_out_of_texts_that_were_cut() -> None:
    for text, content in (
        ('{"na', ""),
        ('{"name": "clo', ""),
        ('{"name": "Ad', '{"name": "Ad'),
        ('{"a', '{"a'),
        ("a <", "a "),
    ):
        reader = hermes if "<" in text else llama3
        assert told_however_cut(reader, text, is_cut=True) == Told(content), text
    assert told_however_cut(HarmonyReader, " to", is_cut=True) == Told(" to")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello { there", Told("Hello { there")),
        (f'{{"name": "weather", "parameters": {OSLO}}}', Told(calls=[("weather", OSLO)])),
        (f'<|python_tag|>{{"name": "weather", "parameters": {OSLO}}}', Told(calls=[("weather", OSLO)])),
        (
            f'\n{{"type": "function", "name": "weather", "parameters": {HARD}}}'
            '; {"name": "clock", "parameters": {}}\n',
            Told(calls=[("weather", HARD), ("clock", "{}")]),
        ),
        ('\n{"name": "Ada", "parameters": 1}', Told('\n{"name": "Ada", "parameters": 1}')),
        ('{"a": {"name": "weather"}} b', Told('{"a": {"name": "weather"}} b')),
        ('{"name": "clo', Told('{"name": "clo')),
        ("<|python_tag|>print(1)", Told("print(1)")),
        ("<|python", Told("<|python")),
        ('{"name": "clock", "parameters": {}}\n\nDone.', Told("Done.", calls=[("clock", "{}")])),
        (" \n", Told(" \n")),
    ],
)
def test_llama3(text: str, expected: Told) -> None:
    assert told_however_cut(llama3, text) == expected


ANALYSIS = "<|channel|>analysis<|message|>I look < at it.<|end|>"
CALLED = f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{OSLO}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>It <|rains.", Told("It <|rains.", "I look < at it.")),
        (ANALYSIS + CALLED, Told("", "I look < at it.", [("weather", OSLO)])),
        (ANALYSIS + CALLED + "<|call|>", Told("", "I look < at it.", [("weather", OSLO)])),
        (
            "<|channel|>commentary<|message|>First this.<|end|>"
            "<|start|>assistant to=functions.clock<|channel|>commentary json<|message|>{}",
            Told("First this.", calls=[("clock", "{}")]),
        ),
        (" to=functions.clock<|channel|>commentary json<|message|>{}", Told(calls=[("clock", "{}")])),
        ("no channels", Told("no channels")),
        (" to you", Told(" to you")),
        ("<|channel|>ana", Told()),
        ("<|channel|>analysis<|message|>", Told()),
        ("<|channel|>final<|message|>a<|return|>", Told("a")),
    ],
)  # fmt: skip
def test_harmony(text: str, expected: Told) -> None:
    assert told_however_cut(HarmonyReader, text) == expected


def test_harmony_goes_on_from_the_prompts_header() -> None:
    header = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    assert told_however_cut(partial(HarmonyReader, header), OSLO) == Told(calls=[("weather", OSLO)])


def test_arguments_are_told_as_they_come() -> None:
    reader, result = hermes(), Told()
    result.add(reader.push('<tool_call>\n{"name": "weather", "arguments": {"city": "Os'))
    assert result.calls == [("weather", '{"city": "Os')]
    assert told(hermes, "a") == Told("a")


@pytest.mark.parametrize("text", ["[" * 5000, '{"name": "weather", "arguments": ' + "[" * 5000])
def test_deep_nesting_is_only_text(text: str) -> None:
    assert told(hermes, f"<tool_call>{text}").content or told(hermes, f"<tool_call>{text}").calls


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

"""From messages to tokens: every template gets them in the form that it takes, and none swallows what is said; prompts
with and without thinking, and the BOS that must be there once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog.pairs import read_vocabulary
from specrun.decoding.prompts import (
    ChatFormat,
    FittedTemplate,
    chat_template,
    is_begun,
    prompt_tokens,
    single_turn_tokens,
)
from specrun.errors import ModelFileError, PromptError
from specrun.llama import LlamaModel
from specrun.llama.chat_template import ChatTemplate, Message, NamedTemplate, template_names
from tests.models import CHAT_TEMPLATE, edited
from tests.serving.templates import GEMMA2, GPT_OSS, LLAMA31, OPEN_THINKING, QWEN3, SMOL_VLM

SYSTEM: Message = {"role": "system", "content": "be brief"}
ASKED: Message = {"role": "user", "content": "why?"}
ANSWERED: Message = {"role": "assistant", "content": "so"}
SILENT = "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"


def fitted(source: str) -> FittedTemplate:
    return FittedTemplate(ChatTemplate(source, "<bos>", ""))


@pytest.mark.parametrize("source", [QWEN3, OPEN_THINKING, LLAMA31, GPT_OSS])
def test_a_template_that_takes_everything_gets_everything(source: str) -> None:
    messages, template = [SYSTEM, ASKED, ANSWERED, ASKED], fitted(source)
    assert template.render(messages) == ChatTemplate(source, "<bos>", "").render(messages)
    assert template.has_system_role


def test_without_a_system_role_the_text_goes_before_the_users_first() -> None:
    turns = "<bos><start_of_turn>user\nbe brief\n\nwhy?<end_of_turn>\n<start_of_turn>model\n"
    template = fitted(GEMMA2)
    assert template.render([SYSTEM, ASKED]) == turns
    assert template.render([SYSTEM, ASKED, ANSWERED, ASKED]).startswith(turns + "so<end_of_turn>\n")
    assert not template.has_system_role
    later = template.render([SYSTEM, SYSTEM, ASKED, ANSWERED, SYSTEM, ASKED])
    assert later.count("be brief\n\nbe brief\n\nwhy?") == 1
    assert later.count("be brief\n\nwhy?") == 2
    assert "user\nbe brief<end_of_turn>" in template.render([SYSTEM])
    with pytest.raises(ModelFileError, match="must alternate"):
        template.render([ASKED, ASKED])


def test_a_system_message_that_is_left_out_in_silence_is_not() -> None:
    assert fitted(SILENT).render([SYSTEM, ASKED]) == "<user>be brief\n\nwhy?"


@pytest.mark.parametrize("name", template_names())
def test_llama_cpp_s_own_templates_write_the_system_message(name: str) -> None:
    text = FittedTemplate(NamedTemplate(name)).render([SYSTEM, ASKED])
    assert text.find("be brief") < text.find("why?")
    assert "be brief" in text


def test_a_template_that_wants_parts_gets_them() -> None:
    text = "<|im_start|>System: be brief<end_of_utterance>\nUser: why?<end_of_utterance>\nAssistant:"
    assert fitted(SMOL_VLM).render([SYSTEM, ASKED]) == text
    only = "{% for m in messages %}{{ m.content[0].text + '' }}{% endfor %}"  # it fails for texts
    assert fitted(only).render([SYSTEM, ASKED]) == "be briefwhy?"


@pytest.mark.parametrize(
    "source", ["{# nothing #}", "{% set x = 1 %}\n", "{{ bos_token }}", "{{ message }}", "Answer:"]
)
def test_a_template_that_swallows_the_message_is_named(source: str) -> None:
    for messages in ([ASKED], [SYSTEM, ASKED]):
        with pytest.raises(ModelFileError, match="the chat template leaves out what the user says; name another"):
            fitted(source).render(messages)


def test_a_template_that_refuses_everything_says_why() -> None:
    for messages in ([ASKED], [SYSTEM, ASKED]):
        with pytest.raises(ModelFileError, match="never"):
            fitted("{{ raise_exception('never') }}").render(messages)


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
        assert thinking in chat_format.prompt([ASKED])
        prompt = chat_format.prompt([ASKED], thinks=False)
        assert not_thinking in prompt
        assert not chat_format.form.is_thinking(prompt)
        assert "<think>\n\n</think>" not in chat_format.prompt([ASKED])


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
        assert chat_format.prompt([ASKED, BEGUN]).endswith(bare)
        assert chat_format.prompt([ASKED, {**thinking, "content": "Because "}]).endswith(with_thoughts)
        assert chat_format.prompt([ASKED, thinking]).endswith(thoughts_alone)
        assert chat_format.prompt([ASKED, {"role": "assistant", "content": ""}]) == chat_format.prompt([ASKED])
        calls: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
        }
        assert not is_begun([calls])


def render(source: str) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>hello</s>"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{% endfor %}x", "x"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hello"}'),
        ("{{ 'é' | tojson }}", '"é"'),
        ("{% if add_generation_prompt %}\n  assistant:{% endif %}", "  assistant:"),
        ("{{ tools is defined }}", "False"),
    ],
)
def test_templates_render_as_transformers_renders_them(source: str, text: str) -> None:
    assert render(source) == text


def test_a_template_can_ask_for_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}").startswith("20")


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].missing.deeper }}",
        "{{ 1 / 0 }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_fails_or_tries_to_escape_is_one_line(source: str) -> None:
    with pytest.raises(ModelFileError, match="chat template failed") as error:
        render(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", ["{% for", "{{ a b }}", "{% endfor %}", "{% include 'x' %}{% bogus %}"])
def test_a_template_that_is_no_jinja_is_one_line(source: str) -> None:
    with pytest.raises(ModelFileError, match="chat template is broken"):
        ChatTemplate(source, "", "")


@pytest.mark.parametrize("template", [None, "", " \n\t", "\u00a0\u2028"])
def test_a_model_without_a_template_has_none(script: Path, tmp_path: Path, template: str | None) -> None:
    with LlamaModel(edited(tmp_path / "model.gguf", script, {CHAT_TEMPLATE: template})) as model:
        assert chat_template(model) is None
        assert single_turn_tokens(model, "x", None) == model.tokenize("x", add_special=False)


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
def test_bos_comes_once_whether_or_not_the_template_writes_it(script: Path, tmp_path: Path, template: str) -> None:
    metadata = {CHAT_TEMPLATE: template, "tokenizer.ggml.add_bos_token": True}
    with LlamaModel(edited(tmp_path / "model.gguf", script, metadata)) as model:
        tokens = single_turn_tokens(model, "x", chat_template(model))
        bos = read_vocabulary(model.file).bos
        assert bos is not None
        assert tokens == [bos, *model.tokenize("x", add_special=False)]


def test_special_tokens_of_a_template_are_read_as_such(script: Path) -> None:
    with LlamaModel(script) as model:
        end = model.special_token_text("eos")
        assert model.is_end_of_generation(prompt_tokens(model, f"x{end}")[-1])


def test_text_that_has_no_utf8_is_refused(script: Path) -> None:
    with LlamaModel(script) as model, pytest.raises(PromptError, match="not UTF-8"):
        prompt_tokens(model, "a\udcff")

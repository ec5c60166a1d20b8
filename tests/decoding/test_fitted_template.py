"""Every template gets messages in the form that it takes, and none swallows what is said."""

from __future__ import annotations

import pytest

from specrun.decoding.fitted_template import FittedTemplate
from specrun.errors import ModelFileError
from specrun.llama import named_template
from specrun.llama.chat_template import ChatTemplate, Message
from specrun.llama.named_template import NamedTemplate
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


@pytest.mark.parametrize("name", named_template.names())
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

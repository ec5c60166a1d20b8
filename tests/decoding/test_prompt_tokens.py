"""From messages to tokens: chat templates, and the BOS that must be there once."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog.pairs import read_vocabulary
from specrun.decoding.prompt_tokens import chat_template, prompt_tokens, single_turn_tokens
from specrun.errors import ModelFileError, PromptError
from specrun.llama import LlamaModel
from specrun.llama.chat_template import ChatTemplate, Message
from tests.models import CHAT_TEMPLATE, edited

MESSAGES: list[Message] = [{"role": "user", "content": "hello"}]


def render(source: str) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render(MESSAGES)


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

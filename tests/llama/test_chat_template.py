"""A chat template is a stranger's program: whatever it does ends, in one line."""

from __future__ import annotations

import encodings.aliases
import os
import signal
import sys
from pathlib import Path

import pytest

from specrun.errors import ModelFileError, PromptError
from specrun.llama import chat_template
from specrun.llama.chat_template import CHATML, ChatTemplate, Message, NamedTemplate, template_names
from specrun.processes import template_sandbox

MESSAGES: list[Message] = [{"role": "user", "content": "hello"}]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}"


def failure(source: str, content: str = "hello") -> str:
    with pytest.raises(ModelFileError, match="the chat template") as raised:
        ChatTemplate(source, "", "").render([{"role": "user", "content": content}])
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 500
    return str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "{% set n = messages|length * 10**10 %}{{ 'a' * n }}",
        "{{ [messages] * 10**10 }}",
        "{{ '%10000000000d' % messages|length }}",
        "{{ '{:10000000000}'.format(messages|length) }}",
        "{{ messages[0].content.ljust(10**10) }}",
        "{{ messages[0].content|center(10**10) }}",
        "{% set x = namespace(a=messages[0].content) %}{% for i in range(99) %}{% set x.a = x.a ~ x.a %}{% endfor %}",
    ],
)
def test_memory_is_bounded(source: str) -> None:
    assert "MiB of memory" in failure(source)


def test_the_text_is_bounded_but_for_long_messages() -> None:
    long: Message = {"role": "user", "content": "x" * 2_000_000}
    assert len(ChatTemplate("{{ messages[0].content }}" * 2, "", "").render([long])) == 4_000_000
    assert "characters" in failure(LOOP + "xxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}")


@pytest.mark.slow
@pytest.mark.parametrize("source", [LOOP + "{% endfor %}{% endfor %}", "{{ 7 ** (10 ** messages|length * 10**7) }}"])
def test_time_is_bounded(source: str) -> None:
    assert "too long" in failure(source)


def test_what_transformers_adds_to_jinja() -> None:
    source = "{% generation %}{{ bos_token }}{% endgeneration %}{{ tools | tojson(indent=1) }}{{ more }}"
    template = ChatTemplate(source, "<s>", "")
    assert template.render(MESSAGES, tools=[{"a": "é<"}], variables={"more": 1}) == '<s>[\n {\n  "a": "é<"\n }\n]1'


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[0].content | wordwrap(3, wrapstring='|') }}", "hel|lo"),
        ("{{ '<b>é &lt; 1</b>' | striptags }}", "é < 1"),
        ("{{ 'bücher'.encode('idna') }}", "b'xn--bcher-kva'"),
        ("{{ '\\N{CHECK MARK}' }}", "✓"),
    ],
)
def test_what_python_imports_late_is_there(source: str, text: str) -> None:
    assert ChatTemplate(source, "", "").render(MESSAGES) == text


@pytest.mark.slow
def test_no_filter_and_no_codec_opens_a_file() -> None:
    filters = ChatTemplate("{{ [messages[0].content] | map(name) | list }}", "", "")
    codecs = ChatTemplate("{{ messages[0].content.encode(name) }}", "", "")
    names = {
        filters: list(template_sandbox._environment().filters),
        codecs: [*encodings.aliases.aliases.values(), "idna", "oem", "punycode", "unknown"],
    }
    failed = []
    for template in names:
        for name in names[template]:
            try:
                template.render(MESSAGES, variables={"name": name})
            except ModelFileError as error:
                failed.append(str(error))
    assert not [message for message in failed if "open" in message]
    assert len(failed) < 40  # those that need arguments, and codecs that are not for text


def test_a_template_goes_on_after_a_failure() -> None:
    template = ChatTemplate("{% if messages|length > 1 %}{{ 'a' * 10**10 }}{% endif %}{{ bos_token }}", "<s>", "")
    assert template.render(MESSAGES) == "<s>"
    with pytest.raises(ModelFileError, match="memory"):
        template.render(MESSAGES * 2)
    assert template.render(MESSAGES) == "<s>"


def test_a_process_that_is_gone_is_replaced() -> None:
    template = ChatTemplate("{{ messages[0].content }}", "", "")
    assert template._process
    os.kill(template._process._process.pid, signal.SIGKILL)
    with pytest.raises(ModelFileError, match="its process ended"):
        template.render(MESSAGES)
    assert template.render(MESSAGES) == "hello"


def test_an_answer_that_nobody_waited_for_is_not_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages|length }}", "", "")

    def interrupted(_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(chat_template._Process, "_line", interrupted)
        with pytest.raises(KeyboardInterrupt):
            template.render(MESSAGES)
    assert template.render(MESSAGES * 2) == "2"


def test_what_a_failing_template_says_cannot_command_the_terminal() -> None:
    assert "\\u001b[2J" in failure("{{ raise_exception(messages[0].content) }}", "\x1b[2J" + "x" * 10_000)


def test_any_text_passes_unchanged() -> None:
    text = "\x00\x1b\u202e\n\r\u2028 é 👩 \ud800"
    template = ChatTemplate("{{ messages[0].content }}", "", "")
    assert template.render([{"role": "user", "content": text}]) == text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_process_has_no_secrets_and_can_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    template = ChatTemplate("x", "", "")
    assert template._process
    folder = Path(f"/proc/{template._process._process.pid}")
    assert b"secret" not in (folder / "environ").read_bytes()
    limits = (folder / "limits").read_text().splitlines()
    values = {line[:25].strip(): line[25:].split()[:2] for line in limits}
    assert values["Max open files"] == ["3", "3"]
    assert values["Max file size"] == ["0", "0"]
    assert values["Max address space"] == [str(template_sandbox.MOST_BYTES)] * 2


def test_a_prepared_process_serves_the_next_template() -> None:
    chat_template.prepare()
    process = chat_template._prepared
    chat_template.prepare()
    assert chat_template._prepared is process
    template = ChatTemplate("{{ bos_token }}", "a", "")
    assert (template._process, chat_template._prepared) == (process, None)
    assert template.render(MESSAGES) == "a"
    assert ChatTemplate("{{ bos_token }}", "b", "").render(MESSAGES) == "b"


def test_chatml_in_full() -> None:
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße"}]
    turns = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGrüße<|im_end|>\n"
    assert NamedTemplate(CHATML).render(messages) == f"{turns}<|im_start|>assistant\n"


@pytest.mark.parametrize("name", ["llama3", "gemma", "mistral-v7"])
def test_names_of_llama_cpp_render(name: str) -> None:
    assert name in template_names()
    assert "Hello" in NamedTemplate(name).render([{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("content", ["a\0b", "\0", "\0a\0\0", "\ue000\0\ue001\x01", "a\nb\ue000"])
def test_a_message_is_whole_in_every_template(role: str, content: str) -> None:
    messages: list[Message] = [{"role": "user", "content": "hello"}, {"role": "user", "content": "x"}]
    messages[1] = {"role": role, "content": content}
    for name in template_names():
        assert content in NamedTemplate(name).render(messages), name


@pytest.mark.parametrize("content", ["a \ud83d b", "\udcff", "\ude00\ud83d"])
def test_lone_surrogates_are_refused(content: str) -> None:
    for name in template_names():
        with pytest.raises(PromptError, match=r"not UTF-8 .* is a lone surrogate"):
            NamedTemplate(name).render([{"role": "user", "content": content}])

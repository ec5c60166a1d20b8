"""What a model thinks before it answers: apart from the answer in every output, and not at all where it is asked so."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Specrun, SpecrunHere
from tests.models import CHAT_TEMPLATE, TOKEN_TYPES, TOKENS, Reader, edited, metadata_of, scripted_llama
from tests.serving.templates import GPT_OSS, OPEN_THINKING, QWEN3

ANSWER = "It is **so**."
PIECES = [b"<think>\n", b"hm,", b" hm", b"\n</think>\n\n", b"It", b" is", b" **so**."]
OPEN_PIECES = [b"hm,", b" hm", b"\n</think>", b"\n\nIt", b" is", b" **so**."]


CHANNELS = [b"<|channel|>", b"analysis", b"<|message|>", b"hm,", b" hm", b"<|start|>"]
CHANNELS += [b"assistant<|channel|>final<|message|>It", b" is", b" **so**."]


@pytest.fixture(scope="module", params=["<think>", "open", "harmony"])
def thinker(request: pytest.FixtureRequest, made: Path) -> Path:
    """A model that thinks before it answers, by itself, because its prompt ends with <think>, or in a channel."""
    if request.param == "harmony":
        plain = scripted_llama(made / "plain.gguf", CHANNELS, metadata={CHAT_TEMPLATE: GPT_OSS})
        values = metadata_of(Reader(plain))
        kinds = zip(values[TOKENS], values[TOKEN_TYPES], strict=True)
        types = [3 if name.startswith("<|") else kind for name, kind in kinds]  # control tokens
        return edited(made / "harmony.gguf", plain, {TOKEN_TYPES: types})
    if request.param == "open":
        return scripted_llama(made / "open.gguf", OPEN_PIECES, metadata={CHAT_TEMPLATE: OPEN_THINKING})
    return scripted_llama(made / "thinker.gguf", PIECES, metadata={CHAT_TEMPLATE: QWEN3})


@pytest.mark.slow
def test_the_answer_alone_goes_to_stdout(here: SpecrunHere, thinker: Path) -> None:
    shown = here("generate", "why?", "-m", thinker, "--speculate", "off")
    assert (shown.code, shown.stdout, shown.stderr) == (0, f"{ANSWER}\n", "hm, hm\n\n")
    hidden = here("generate", "why?", "-m", thinker, "--speculate", "off", "--think", "hide")
    assert (hidden.code, hidden.stdout, hidden.stderr) == (0, f"{ANSWER}\n", "")


@pytest.mark.parametrize("form", ["--json", "--jsonl"])
def test_an_object_has_both_parts_and_counts_all_tokens(here: SpecrunHere, thinker: Path, form: str) -> None:
    given = '{"prompt": "why?"}' if form == "--jsonl" else "why?"
    result = here("generate", "-m", thinker, "--speculate", "off", form, stdin=f"{given}\n" * (1 + (form == "--jsonl")))
    for line in result.stdout.splitlines():
        answer = json.loads(line)
        assert (answer["text"], answer["thinking"]) == (ANSWER, "hm, hm")
        assert answer["completion_tokens"] == len(answer["token_ids"]) >= len(OPEN_PIECES)
    assert result.stderr == ""


def test_raw_interprets_nothing(here: SpecrunHere, thinker: Path) -> None:
    result = here("generate", "why?", "-m", thinker, "--speculate", "off", "--raw", "--json")
    answer = json.loads(result.stdout)
    assert re.search(r"hm, hm.*It is \*\*so\*\*\.", answer["text"], re.DOTALL), answer
    assert len(answer["text"]) > len(f"hm, hm{ANSWER}")
    assert answer["thinking"] == ""


def test_a_text_that_ends_while_the_model_thinks_says_so(here: SpecrunHere, thinker: Path) -> None:
    result = here("generate", "why?", "-m", thinker, "--speculate", "off", "-n", "2")
    assert result.stdout == ""
    assert "--max-tokens ended the text while the model was thinking; give a larger one" in result.stderr


def test_a_full_context_is_told_where_nothing_can_be_shown(here: SpecrunHere, made: Path) -> None:
    plain = scripted_llama(made / "named.gguf", [b"<|a|>", b"<|b|>"], repeat=True)
    values = metadata_of(Reader(plain))
    kinds = zip(values[TOKENS], values[TOKEN_TYPES], strict=True)
    types = [3 if name.startswith("<|") else kind for name, kind in kinds]  # control tokens
    silent = edited(made / "silent.gguf", plain, {TOKEN_TYPES: types})
    arguments = "-m", silent, "--speculate", "off", "-c", "64"
    text = here("generate", "why?", *arguments)
    assert text.stdout.strip() == ""
    assert "the text is cut off: the context of 64 tokens is full; give a larger --ctx-size" in text.stderr
    assert "the context is full: the answer was cut off" in here("chat", *arguments, stdin="why?").stderr


def test_a_chat_keeps_the_parts_apart(here: SpecrunHere, thinker: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    lines = ["why?", "/think", f"/save {file}", f"/load {file}", "/set think hide", "/set think loud", "and?"]
    result = here("chat", "-m", thinker, "--speculate", "off", stdin="\n".join(lines))
    assert result.stdout == f"{ANSWER}\n\n" * 2
    assert result.stderr.count("hm, hm\n") == 2, "one while it was thought, one for /think"
    assert "think can be show, hide, off; got loud" in result.stderr
    question, answer = json.loads(file.read_text())["messages"]
    assert question["content"] == "why?"
    thinking = answer.get("reasoning_content") or answer["thinking"]
    assert (answer["role"], answer["content"], thinking) == ("assistant", ANSWER, "hm, hm")


def test_off_ends_the_thinking_in_the_prompt(here: SpecrunHere, thinker: Path) -> None:
    def n_prompt_tokens(*options: str) -> int:
        result = here("generate", "why?", "-m", thinker, "--speculate", "off", "--json", *options)
        return int(json.loads(result.stdout)["prompt_tokens"])

    assert n_prompt_tokens("--think", "off") != n_prompt_tokens()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_a_terminal_shows_it_dimmed_and_folds_it(specrun: Specrun, thinker: Path) -> None:
    import pexpect

    chat = specrun.on_terminal("chat", "-m", thinker, "--speculate", "off")
    chat.expect_exact("a message, or /help")
    chat.send("why?\r")
    chat.expect(r"\x1b\[2mthought for \d+\.\d s, \d+ tokens\x1b\[0m")
    chat.expect(r"It is .*so")
    chat.expect(r"\d+ tokens, ")
    chat.expect_exact("a message, or /help")
    chat.send("\x04")
    chat.expect(pexpect.EOF)
    chat.close()
    assert chat.exitstatus == 0

"""Model files and pairs that cannot be used: each ends in one line that says why, and in its exit code."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from tests import foreign_files
from tests.conftest import SCRIPT, SCRIPT_TEXT, Specrun, SpecrunHere
from tests.hybrids import KINDS, noisy, random_recurrent
from tests.models import (
    CHAT_TEMPLATE,
    TOKENS,
    edited,
    random_bert,
    random_llama,
    random_mamba,
    random_t5,
    scripted_llama,
    tensor_data_offset,
    truncated,
)
from tests.serving.templates import GEMMA2

USAGE_ERROR, MODEL_FILE, PAIR, PROMPT, LLAMA = 2, 3, 4, 5, 6  # exit codes, see specrun.errors


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_missing_file(here: SpecrunHere, tmp_path: Path) -> None:
    here("generate", "x", "-m", tmp_path / "no.gguf").assert_fails(MODEL_FILE, "no.gguf", "no such file")


def test_a_directory(here: SpecrunHere, tmp_path: Path) -> None:
    here("generate", "x", "-m", tmp_path).assert_fails(MODEL_FILE, "is a folder")


@pytest.mark.parametrize(
    ("content", "part"), [(b"", "is empty"), (b"GGU", "not a GGUF file"), (b"PK\x03\x04 and more", "not a GGUF file")]
)
def test_a_file_that_is_no_gguf(here: SpecrunHere, tmp_path: Path, content: bytes, part: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    here("generate", "x", "-m", file).assert_fails(MODEL_FILE, part)


@pytest.mark.slow
@pytest.mark.parametrize("is_draft", [False, True])
@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("LoRA", ("is a LoRA adapter", "name its model")),
        ("importance", ("is an importance matrix", "name the model's own file")),
        ("projector", ("is a projector (mmproj)", "name that model's own file")),
        ("old projector", ("is a projector (mmproj)",)),
        ("control vector", ("is a control vector", "name the model")),
        ("no tokenizer", ("has no tokenizer", "choose another file")),
        ("tokenizer of the kind none", ("has no tokenizer",)),
        ("tokenizer that is not named", ("has no tokenizer",)),
        ("big-endian", ("is for big-endian machines", "gguf-convert-endian")),
        ("Git LFS", ("but a Git LFS pointer", "git lfs pull")),
        ("web page", ("but a web page", "/resolve/")),
        ("no web page", ("but a text that begins with",)),
        ("older web page", ("but a web page",)),
        (
            "Invalid username",
            ("but a text that begins with 'Invalid username or password.'", "check the path, or download it again"),
        ),
        ("AccessDenied", ("but a text", "<Error>")),
        ("zeros", ("begins with zeros", "download it again")),
        ("older format", ("of an older format", "-GGUF")),
        ("safetensors", ("not a GGUF file", "-GGUF")),
        ("pickle", ("not a GGUF file", "-GGUF")),
    ],
)
def test_a_file_that_holds_no_model(
    here: SpecrunHere, random_model: Path, tmp_path: Path, kind: str, parts: tuple[str, ...], is_draft: bool
) -> None:
    file = tmp_path / "file.gguf"
    if kind in foreign_files.OTHERS:
        file.write_bytes(foreign_files.OTHERS[kind])
    else:
        foreign_files.GGUFS[kind](file)
    models = ("-m", random_model, "-md", file) if is_draft else ("-m", file)
    here("generate", "x", *models).assert_fails(MODEL_FILE, f"{file} ", *parts)


def test_every_kind_of_file_that_holds_no_model_has_its_words() -> None:
    marks = [mark for mark in test_a_file_that_holds_no_model.pytestmark if mark.name == "parametrize"]
    (tested,) = (mark for mark in marks if mark.args[0] == ("kind", "parts"))
    assert [kind for kind, _ in tested.args[1]] == [*foreign_files.GGUFS, *foreign_files.OTHERS]


def test_every_command_with_a_target_needs_a_tokenizer(here: SpecrunHere, tmp_path: Path) -> None:
    file = foreign_files.GGUFS["no tokenizer"](tmp_path / "model.gguf")
    for command in [
        ("chat", "-m", file),
        ("serve", "-m", file, "--port", 0),
        ("tune", "-m", file),
        ("verify", "-m", file),
        ("models", "make-draft", file),
    ]:
        here(*command).assert_fails(MODEL_FILE, f"{file} has no tokenizer")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_an_unreadable_file(here: SpecrunHere, tmp_path: Path) -> None:
    file = random_llama(tmp_path / "model.gguf")
    file.chmod(0)
    here("generate", "x", "-m", file).assert_fails(MODEL_FILE, "cannot be read")


@pytest.mark.parametrize("where", ["magic", "header", "metadata", "tokens", "tensor list", "tensors", "last byte"])
def test_a_file_that_was_cut_short(here: SpecrunHere, random_model: Path, tmp_path: Path, where: str) -> None:
    data_offset = tensor_data_offset(random_model)
    n_bytes = {
        "magic": 4,
        "header": 16,
        "metadata": 100,
        "tokens": data_offset // 2,
        "tensor list": data_offset - 200,
        "tensors": data_offset + 5000,
        "last byte": -1,
    }[where]
    file = truncated(tmp_path / "cut.gguf", random_model, n_bytes)
    here("generate", "x", "-m", file).assert_fails(MODEL_FILE, "cut.gguf is incomplete", "again")


def test_a_file_with_a_name_that_is_not_utf8(here: SpecrunHere, tmp_path: Path, script: Path) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.gguf")
    file.symlink_to(script)
    assert here("generate", "x", "-m", file).stdout == f"{SCRIPT_TEXT}\n"


def test_a_vocabulary_without_weights(here: SpecrunHere, tmp_path: Path) -> None:
    file = random_llama(tmp_path / "vocabulary.gguf", with_tensors=False)
    here("generate", "x", "-m", file).assert_fails(MODEL_FILE, "vocabulary-only")


def test_an_architecture_that_llama_cpp_does_not_know(here: SpecrunHere, random_model: Path, tmp_path: Path) -> None:
    file = edited(tmp_path / "new.gguf", random_model, {"general.architecture": "llama99"})
    here("generate", "x", "-m", file).assert_fails(MODEL_FILE, "llama99", "upgrade llama-cpp-python")


def test_a_model_that_llama_cpp_gives_up_on(specrun: Specrun, random_model: Path, tmp_path: Path) -> None:
    tokens = gguf.GGUFReader(random_model).fields[TOKENS].contents()
    tokens[300] = tokens[301]  # llama.cpp ends the process over a token that is there twice
    file = edited(tmp_path / "twice.gguf", random_model, {TOKENS: tokens})
    specrun("generate", "x", "-m", file).assert_fails(LLAMA, "llama.cpp gave up")


def test_embedding_models(here: SpecrunHere, random_model: Path, tmp_path: Path) -> None:
    bert = random_bert(tmp_path / "bert.gguf")
    here("generate", "x", "-m", bert).assert_fails(MODEL_FILE, "embedding model (bert)")
    llama = edited(tmp_path / "embedding.gguf", random_model, {"llama.attention.causal": False})
    here("generate", "x", "-m", llama).assert_fails(MODEL_FILE, "embedding model (llama)")


def test_an_encoder_decoder_model(here: SpecrunHere, tmp_path: Path) -> None:
    file = random_t5(tmp_path / "t5.gguf")
    here("generate", "x", "-m", file).assert_fails(MODEL_FILE, "encoder-decoder model (t5)")


def test_a_context_length_that_no_file_can_mean_is_ignored(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file = edited(tmp_path / "huge.gguf", script, {"llama.context_length": 2**31})
    assert here("generate", "x", "-m", file).stdout == f"{SCRIPT_TEXT}\n"


# --- chat templates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [None, " \n"])
def test_without_a_chat_template_generate_continues_the_prompt(
    here: SpecrunHere, script: Path, tmp_path: Path, template: str | None
) -> None:
    file = edited(tmp_path / "base.gguf", script, {CHAT_TEMPLATE: template})
    result = here("generate", "x", "-m", file, "--speculate", "off")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n")
    assert result.stderr.count("\n") == 1
    assert "no chat template" in result.stderr


@pytest.mark.parametrize("template", [None, " \n"])
def test_without_a_chat_template_chat_uses_chatml(
    here: SpecrunHere, script: Path, tmp_path: Path, template: str | None
) -> None:
    file = edited(tmp_path / "base.gguf", script, {CHAT_TEMPLATE: template})
    result = here("chat", "-m", file, "--speculate", "off", stdin="x\n")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n\n")
    assert "no chat template, so ChatML is used" in result.stderr


def test_a_chat_template_can_be_given_by_name_or_file(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("a b c {{ messages[0]['content'] }}")
    counts = []
    for options in ([], ["--chat-template", "llama2"], ["--chat-template", file]):
        result = here("generate", "x", "-m", script, "--speculate", "off", "--json", *options)
        counts.append(json.loads(result.stdout)["prompt_tokens"])
    assert len(set(counts)) == 3, counts


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ("neither a file nor one of", "chatml")),
        (b"", ("is empty",)),
        (b"\xe9", ("is not UTF-8",)),
    ],
)
def test_a_chat_template_that_cannot_be_used(
    here: SpecrunHere, script: Path, tmp_path: Path, content: bytes | None, parts: tuple[str, ...]
) -> None:
    file = tmp_path / "own.jinja"
    if content is not None:
        file.write_bytes(content)
    here("generate", "x", "-m", script, "--chat-template", file).assert_fails(USAGE_ERROR, "own.jinja", *parts)


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("{% for m in messages %}{{ m", "unexpected end of template"),
        ("{{ raise_exception('one turn\nonly') }}", "one turn only"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{# nothing #}", "leaves out what the user says"),
    ],
)
def test_a_chat_template_that_fails(here: SpecrunHere, script: Path, tmp_path: Path, template: str, part: str) -> None:
    file = edited(tmp_path / "template.gguf", script, {CHAT_TEMPLATE: template})
    result = here("generate", "x", "-m", file, "--speculate", "off")
    result.assert_fails(MODEL_FILE, "chat template", part, "--chat-template", "--raw")


@pytest.mark.slow
def test_a_template_without_a_system_role_is_told_once(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file = edited(tmp_path / "gemma.gguf", script, {CHAT_TEMPLATE: GEMMA2})
    notice, options = "the chat template has no system role", ("-m", file, "--speculate", "off")
    answered = here("generate", "x", "--system", "be brief", *options)
    assert (answered.code, answered.stdout, answered.stderr.count(notice)) == (0, f"{SCRIPT_TEXT}\n", 1)
    assert notice not in here("generate", "x", *options).stderr
    saved = tmp_path / "saved.json"
    chat = here("chat", *options, stdin=f"one\n/system be brief\ntwo\nthree\n/save {saved}\n")
    assert (chat.code, chat.stdout, chat.stderr.count(notice)) == (0, f"{SCRIPT_TEXT}\n\n" * 3, 1)
    assert json.loads(saved.read_text())["messages"][0] == {"role": "system", "content": "be brief"}


def test_raw_needs_no_chat_template(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file = edited(tmp_path / "template.gguf", script, {CHAT_TEMPLATE: "{{"})
    result = here("generate", "x", "-m", file, "--speculate", "off", "--raw")
    assert (result.code, result.stdout, result.stderr) == (0, f"{SCRIPT_TEXT}\n", "")


# --- pairs ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_draft_with_another_tokenizer_drafts_and_says_so(
    here: SpecrunHere, random_model: Path, tmp_path: Path
) -> None:
    fields = gguf.GGUFReader(random_model).fields
    tokens = fields[TOKENS].contents()
    tokens[7] += "other"
    draft = edited(tmp_path / "draft.gguf", random_llama(tmp_path / "small.gguf", n_layer=1), {TOKENS: tokens})
    result = here("generate", "x", "-m", random_model, "-md", draft, "-n", "8", "--speculate", "tree")
    assert result.stdout == here("generate", "x", "-m", random_model, "-n", "8", "--speculate", "off").stdout
    assert result.stderr.startswith("the draft has another tokenizer, which shares ")
    assert result.stderr.count("\n") == 1
    odd = edited(tmp_path / "odd.gguf", draft, {TOKENS: [f"<{i}>" for i in range(len(tokens))]})
    result = here("generate", "x", "-m", random_model, "-md", odd)
    result.assert_fails(PAIR, "shares 0%", "same family")


def test_a_draft_bigger_than_its_target(here: SpecrunHere, random_model: Path, tmp_path: Path) -> None:
    draft = random_llama(tmp_path / "draft.gguf", n_layer=3)
    here("generate", "x", "-m", random_model, "-md", draft).assert_fails(PAIR, "bigger", "swap")


def test_a_draft_that_is_no_model(here: SpecrunHere, random_model: Path, tmp_path: Path) -> None:
    result = here("generate", "x", "-m", random_model, "-md", tmp_path / "no.gguf")
    result.assert_fails(MODEL_FILE, "no.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("bigger", ["target", "draft"])
def test_vocabularies_padded_to_different_sizes_make_a_pair(here: SpecrunHere, tmp_path: Path, bigger: str) -> None:
    target = random_llama(tmp_path / "target.gguf", n_layer=4, vocab_extra=5 * (bigger == "target"))
    draft = random_llama(tmp_path / "draft.gguf", vocab_extra=5 * (bigger == "draft"))
    result = here("generate", "x", "-m", target, "-md", draft, "-n", "8", "--speculate", "tree")
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout == here("generate", "x", "-m", target, "-n", "8", "--speculate", "off").stdout


# --- recurrent models ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_target_drafts_without_a_word(here: SpecrunHere, tmp_path: Path, kind: str) -> None:
    target = random_recurrent(tmp_path / "target.gguf", kind)
    draft = noisy(tmp_path / "draft.gguf", target)
    options = ["generate", "x y z", "--raw", "-m", target, "-n", "24"]
    plain = here(*options, "--speculate", "off")
    for more in (["-md", draft, "--speculate", "chain"], ["-md", draft], ["--draft", "none", "--method", "draftless"]):
        result = here(*options, *more)
        # On a busy machine `auto` may say that it drafts no more.
        gave_up = "speculation is off, because it does not pay here (learned while writing)\n"
        told = result.stderr.replace(gave_up, "") if more == ["-md", draft] else result.stderr
        assert replace(result, stderr=told) == plain, more
    told = here(*options, "-md", draft, "--speculate", "tree")
    assert told.stdout == plain.stdout
    assert told.stderr.count("\n") == 1
    assert "checks one path" in told.stderr
    exact = here(*options, "-md", draft, "--speculate", "chain", "--exact")
    assert (exact.code, exact.stdout) == (0, plain.stdout)


@pytest.mark.slow
def test_a_recurrent_draft_drafts_for_one_text_at_a_time(here: SpecrunHere, tmp_path: Path) -> None:
    target = scripted_llama(tmp_path / "target.gguf", SCRIPT, n_layer=20)
    draft = random_mamba(tmp_path / "mamba.gguf")
    vocabulary = gguf.GGUFReader(target).fields[TOKENS].contents()
    assert vocabulary[: len(gguf.GGUFReader(draft).fields[TOKENS].contents())] == vocabulary[:-1]
    result = here("generate", "x", "-m", target, "-md", draft)
    assert (result.code, result.stdout, result.stderr) == (0, f"{SCRIPT_TEXT}\n", "")


def test_a_recurrent_model_can_be_talked_with(here: SpecrunHere, tmp_path: Path) -> None:
    model = random_mamba(tmp_path / "mamba.gguf")
    result = here("chat", "-m", model, "-n", "4", "--speculate", "off", stdin="one\ntwo\n/regen\n")
    assert result.code == 0
    assert result.stderr.count("4 tokens, ") == 3


def test_a_tokenizer_that_gives_tokens_it_does_not_have(here: SpecrunHere, random_model: Path, tmp_path: Path) -> None:
    # This kind of tokenizer has no token for characters that it does not know, and says -1.
    file = edited(tmp_path / "unknown.gguf", random_model, {"tokenizer.ggml.model": "rwkv"})
    result = here("generate", "☃", "--raw", "-m", file, "--speculate", "off")
    result.assert_fails(MODEL_FILE, "broken tokenizer")

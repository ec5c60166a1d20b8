"""`specrun chat` with a pipe on stdin: every command, and that only answers go to stdout."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrun.chat import commands
from specrun.errors import LlamaError, PromptError, UsageError
from specrun.llama import TargetContext
from specrun.llama.scoring import Part
from specrun.speculation.tree import TokenTree
from tests.conftest import SCRIPT_TEXT, Result, SpecrunHere
from tests.other_programs import in_ollama


def chat(here: SpecrunHere, model: Path, *lines: str, options: tuple[str, ...] = (), code: int = 0) -> Result:
    """A chat of these lines, with the model as its own draft. code: the exit code, of the last line that failed."""
    result = here("chat", "-m", model, "-md", model, *options, stdin="\n".join(lines))
    assert result.code == code, result
    return result


def test_three_turns_on_stdout_and_their_statistics_on_stderr(here: SpecrunHere, script: Path) -> None:
    result = chat(here, script, "one", "", "two", '"""', "three", '"""')
    assert result.stdout == f"{SCRIPT_TEXT}\n\n" * 3
    assert result.stderr.count("5 tokens, ") == 3
    assert "\x1b" not in result.stdout + result.stderr


def test_help_names_every_command(here: SpecrunHere, script: Path) -> None:
    result = chat(here, script, "/help")
    assert result.stdout == ""
    for name in commands.COMMANDS:
        assert f"\n{name}" in f"\n{result.stderr}"


def test_exit_leaves_the_rest_unread(here: SpecrunHere, script: Path) -> None:
    assert chat(here, script, "/exit", "one").stdout == ""


def test_commands_say_what_they_did(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    result = chat(
        here,
        script,
        "/stats",
        "/tree",
        "/regen",
        "/undo",
        "/system be brief",
        "one",
        "/stats",
        "/tree",
        "/regen",
        f"/save {file}",
        "/undo",
        "/system",
        "/system none",
        "/system",
        "/clear",
        "/load",
        f"/load {file}",
        options=("--speculate", "tree"),
    )
    expected = [
        "no answer yet",
        "no token tree was drafted",
        "no message to answer yet",
        "nothing to undo",
        "system message set",
        "5 tokens, ",
        "plan        tree of",
        "accepted    1.00",
        "'one'  accepted",
        "'<|endoftext|>'  the target's own",
        "5 tokens, ",
        f"saved to {file}",
        "forgotten",
        "system message: be brief",
        "system message removed",
        "system message: none",
        "conversation forgotten",
        "no conversation was kept yet",
        "loaded 3 messages",
    ]
    position = 0
    for part in expected:
        position = result.stderr.find(part, position) + 1
        assert position, f"{part!r} is missing or out of order in {result.stderr}"
    messages = json.loads(file.read_text(encoding="utf-8"))["messages"]
    assert [message["content"] for message in messages] == ["be brief", "one", SCRIPT_TEXT]


def test_what_cannot_be_done_is_one_line_and_the_chat_goes_on(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    bad = {
        "/bogus": "there is no command /bogus",
        "/set bogus 1": "there is no setting bogus",
        "/set top-q 1": "did you mean top-p?",
        "/set temprature 1": "there is no setting temprature; did you mean temp? /set alone lists the settings",
        "/set num_predct 5": "did you mean max-tokens?",
        "/rety": "did you mean /regen?",
        "/hlep": "there is no command /hlep; did you mean /help?",
        "/hlep me": "a blank in front makes it a message",
        "/sytem be brief": "did you mean /system?",
        "/etc/passwd": "there is no command /etc/passwd; /help lists the commands, a blank in front",
        "/clear the table": "nothing can stand after /clear; a blank in front makes it a message",
        "/bye for now": "nothing can stand after /bye",
        "/set temp hot": "temp must be a number",
        "/set temp -1": "--temp must be",
        "/set logit-bias 5": "--logit-bias must be a token id and a signed number",
        "/set max-tokens 0": "must be 1 or more",
        "/set speculate hard": "speculate can be",
        "/set budget 1000": "larger --budget",
        "/save": "name a file",
        "/load 1": "cannot be read",
        f"/save {tmp_path}/no/file": "cannot be written",
        "/save ~nobody-has-this-name/file": "no such user",
        f"/load {tmp_path}/missing": "cannot be read",
        f"/load {tmp_path}/text": "not a saved conversation",
        "word " * 600: "--ctx-size",
    }
    result = chat(here, script, *bad, "one", options=("--speculate", "tree"), code=PromptError.exit_code)
    assert result.stdout == f"{SCRIPT_TEXT}\n\n"
    lines = result.stderr.splitlines()
    assert len(lines) == len(bad) + 1
    for line, (command, part) in zip(lines, bad.items(), strict=False):
        assert part in line, command


def test_settings_are_shown_and_changed(here: SpecrunHere, script: Path) -> None:
    result = chat(
        here,
        script,
        "/set max-tokens 2",
        "one",
        "/set max-tokens -1",
        "/set temp 0",
        "/set repeat-last-n",
        "/think hide",
        "/set budget 4",
        "/set seed -1",
        "/set",
        "/set speculate off",
        options=("--speculate", "tree"),
    )
    assert result.stdout == "one two\n\n"
    for line in (
        "max-tokens is 2",
        "max-tokens is no limit",
        "temp is 0.0",
        "budget is 4",
        "speculate is off",
        "repeat-last-n is 64",
        "think is hide",
    ):
        assert f"{line}\n" in result.stderr
    shown = dict(line.split(maxsplit=1) for line in result.stderr.splitlines() if line.count("  "))
    assert (shown["temp"], shown["budget"], shown["speculate"]) == ("0.0", "4", "tree")


def test_the_size_of_a_plan_is_left_to_auto(here: SpecrunHere, script: Path) -> None:
    """It has another for every pass, so none is right for all."""
    shown = chat(here, script, "/set depth", "/set budget", "/set speculate").stderr
    for setting in ("depth", "budget", "speculate"):
        assert f"{setting} is auto\n" in shown


def test_a_full_context_drops_the_oldest_turns_with_a_notice(here: SpecrunHere, script: Path) -> None:
    questions = [f"this is question number {i}, and it is a rather long one" for i in range(8)]
    result = chat(here, script, *questions, options=("-c", "128"))
    assert result.stdout == f"{SCRIPT_TEXT}\n\n" * 8
    assert "the context is full: the oldest turn was dropped" in result.stderr


def test_an_answer_that_fills_the_context_is_told(here: SpecrunHere, random_model: Path) -> None:
    result = chat(here, random_model, "one", options=("-c", "32"))
    assert "the answer was cut off" in result.stderr


def test_the_system_message_of_the_command_line_is_read(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    chat(here, script, "one", f"/save {file}", options=("--system", "be brief"))
    assert json.loads(file.read_text())["messages"][0] == {"role": "system", "content": "be brief"}


def test_several_lines_that_begin_with_a_slash_are_a_message(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    chat(here, script, '"""', "/home/me is full", "what now?", '"""', f"/save {file}")
    assert json.loads(file.read_text())["messages"][0]["content"] == "/home/me is full\nwhat now?"


@pytest.mark.parametrize(
    "message",
    [
        "/etc/passwd is what?",
        "/ is the root",
        "// a comment in C",
        "/usr/bin/env python3 or python?",
        "/s at the end of a sentence\tmeans sarcasm",
        "/home is full",
        "/run or /etc, which is older?",
        " /help",
        " /exit the program",
        "/r/LocalLLaMA\tis a forum",
        "/äöü wie bitte?",
    ],
)
def test_a_line_that_begins_with_a_slash_can_be_a_message(
    here: SpecrunHere, script: Path, tmp_path: Path, message: str
) -> None:
    file = tmp_path / "chat.json"
    result = chat(here, script, message, f"/save {file}")
    assert result.stdout == f"{SCRIPT_TEXT}\n\n"
    assert json.loads(file.read_text(encoding="utf-8"))["messages"][0]["content"] == message


def test_a_command_goes_on_in_the_next_line(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    chat(here, script, '"""', "/system", "be brief", "and kind", '"""', "/set\ttemp 0.5", f"/save\t{file}")
    assert json.loads(file.read_text())["messages"] == [{"role": "system", "content": "be brief\nand kind"}]


@pytest.mark.slow
def test_another_model_goes_on_with_the_conversation(
    here: SpecrunHere, script: Path, random_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "chat.json"
    lines = ["one", f"/model {random_model}", "/set max-tokens 3", "two", f"/save {file}", "/model"]
    result = chat(here, script, *lines)
    assert "answers from now on" in result.stderr
    assert "the embedded pair" in result.stderr
    saved = json.loads(file.read_text())
    assert saved["target"] == str(random_model)
    assert [message["role"] for message in saved["messages"]] == ["user", "assistant"] * 2
    assert saved["messages"][1]["content"] == SCRIPT_TEXT != saved["messages"][3]["content"]


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_leaves_the_one_before(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    result = chat(
        here, script, "one", f"/model {tmp_path / 'none.gguf'}", "two", "/model no-such-model", "three", code=2
    )
    assert result.stdout == f"{SCRIPT_TEXT}\n\n" * 3
    assert "none.gguf" in result.stderr
    assert "no-such-model" in result.stderr


def test_nothing_is_kept_of_a_chat_through_a_pipe(here: SpecrunHere, script: Path) -> None:
    chat(here, script, "one")
    here("chat", "-m", script, "--continue").assert_fails(2, "there is no conversation to continue yet")


@pytest.mark.parametrize("n_passes", [0, 2])
def test_after_a_failed_pass_what_was_written_stays_and_the_chat_goes_on(
    here: SpecrunHere, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_passes: int
) -> None:
    """n_passes: those of the first answer that succeed."""
    file, prepared = tmp_path / "chat.json", TargetContext.prepare
    left = [n_passes]

    def prepare(target: TargetContext, tree: TokenTree) -> Part:
        if left[0] == 0:
            left[0] = 1000
            raise LlamaError("llama.cpp failed on a pass (code -3)")
        left[0] -= 1
        return prepared(target, tree)

    monkeypatch.setattr(TargetContext, "prepare", prepare)
    result = chat(here, script, "one", "two", f"/save {file}", options=("--speculate", "off"), code=6)
    assert "failed on a pass" in result.stderr
    assert SCRIPT_TEXT in result.stdout
    contents = [message["content"] for message in json.loads(file.read_text())["messages"]]
    begun = ["one", "one two"] if n_passes else []
    assert contents == [*begun, "two", SCRIPT_TEXT]
    if n_passes:
        assert result.stdout.startswith("one two")


def test_text_that_is_not_utf8_is_refused_and_the_chat_goes_on(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file, saved = tmp_path / "halves.json", tmp_path / "saved.json"
    file.write_text('{"messages": [{"role": "user", "content": "a \\ud83d b"}]}')
    lines = [b"one", b"\xff", f"/load {file}".encode(), b"a\0b", f"/save {saved}".encode()]
    result = here("chat", "-m", script, "--chat-template", "chatml", stdin=b"\n".join(lines))
    assert (result.code, result.stdout) == (1, f"{SCRIPT_TEXT}\n\n" * 2)
    assert "line 2 of stdin is not UTF-8" in result.stderr
    assert "not a saved conversation" in result.stderr
    contents = [message["content"] for message in json.loads(saved.read_text())["messages"]]
    assert contents == ["one", SCRIPT_TEXT, "a\0b", SCRIPT_TEXT]


def test_a_failed_regen_leaves_the_answer_that_was_there(
    here: SpecrunHere, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, prepared, left = tmp_path / "chat.json", TargetContext.prepare, [6]  # passes of the first answer

    def prepare(target: TargetContext, tree: TokenTree) -> Part:
        left[0] -= 1
        if left[0] < 0:
            raise LlamaError("llama.cpp failed on a pass (code -3)")
        return prepared(target, tree)

    monkeypatch.setattr(TargetContext, "prepare", prepare)
    result = chat(here, script, "one", "/regen", f"/save {file}", options=("--speculate", "off"), code=6)
    assert "failed on a pass" in result.stderr
    assert [message["content"] for message in json.loads(file.read_text())["messages"]] == ["one", SCRIPT_TEXT]


def test_a_damaged_conversation_is_set_aside(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    path = tmp_path / "data" / "chats" / "conversation-1.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"messages": [{"role"')
    here("chat", "--continue", "-m", script).assert_fails(1, f"{path}.damaged", "goes on with the conversation before")
    assert path.with_name(f"{path.name}.damaged").read_text() == '{"messages": [{"role"'
    here("chat", "--continue", "-m", script).assert_fails(2, "no conversation to continue")


def test_words_of_other_tools_are_understood(here: SpecrunHere, script: Path) -> None:
    result = chat(
        here,
        script,
        "/?",
        "/set temperature 0.5",
        "/set parameter top_k 7",
        "/set num-ctx 5",
        "/set n-predict=2",
        '/set system "be brief"',
        "one",
        "/reset",
        "/bye",
        "never",
        code=2,
    )
    assert result.stdout == "one two\n\n"
    said = [
        "/help",
        "temp is 0.5",
        "top-k is 7",
        "there is no setting ctx-size",
        "max-tokens is 2",
        "system message set",
    ]
    assert [part for part in [*said, "conversation forgotten"] if part not in result.stderr] == []
    assert chat(here, script, "one", "exit", "two").stdout == f"{SCRIPT_TEXT}\n\n"


@pytest.mark.slow
@given(st.one_of(st.text(), st.text().map("/{}".format)))
def test_every_message_is_a_command_that_is_there_or_none(message: str) -> None:
    if commands.is_command(message):
        try:
            name, _ = commands.parse(message)
        except UsageError:
            return
        assert name in commands.COMMANDS


@given(st.sampled_from(commands.SETTINGS), st.sampled_from([" ", "=", " = ", "  "]), st.text(min_size=1).map(str.strip))
def test_a_setting_keeps_its_value(name: str, between: str, value: str) -> None:
    if not value.startswith("="):
        assert commands.parse_setting(f"{name}{between}{value}") == (name, value)


# --- what the arguments say ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_and_a_first_message_are_arguments(here: SpecrunHere, script: Path) -> None:
    expected = f"{SCRIPT_TEXT}\n\n"
    for arguments in [
        ("chat", script, "one"),
        ("run", script, "one"),
        ("chat", "-m", script, "one"),
        ("chat", "--model", script, "-md", "none", "--", "-one"),
    ]:
        assert here(*arguments).stdout == expected, arguments
    assert here("chat", script, "one", stdin="two").stdout == 2 * expected
    assert here("chat", script, stdin="two").stdout == expected
    assert here("chat", "one and two", SPECRUN_TARGET=str(script)).stdout == expected


def test_arguments_that_are_too_many_are_told(here: SpecrunHere, script: Path) -> None:
    here("chat", "-m", script, "other", "one").assert_fails(2, "both --target", "other name a model")
    here("chat", script, "why", "is").assert_fails(2, "(is)", "quotes")


def test_a_model_of_ollama_s_has_the_system_message_that_it_was_made_with(
    here: SpecrunHere, script: Path, tmp_path: Path
) -> None:
    in_ollama(Path(os.environ["OLLAMA_MODELS"]), "registry.ollama.ai/library/mario/latest", script, system="Be Mario.")
    for name, options, expected in (
        ("ollama:mario", (), ["Be Mario.", "one"]),
        ("mario:latest", ("--system", "Be brief."), ["Be brief.", "one"]),
    ):
        file = tmp_path / f"{len(options)}.json"
        result = here("chat", name, *options, stdin=f"one\n/save {file}\n")
        assert result.code == 0, result
        assert [m["content"] for m in json.loads(file.read_text())["messages"]][:2] == expected
        assert ("/system none removes it" in result.stderr) is (not options)

"""What people type who come from other tools is understood, or answered with what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.options.expand import COMMANDS, ELSEWHERE, OPTIONS
from tests.cli.test_help import COMMANDS as EVERY
from tests.conftest import SCRIPT_TEXT, SpecrunHere


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--tempratur", "0.5", "x"], "did you mean --temp?"),
        (["--top_k", "5", "x"], "did you mean --top-k?"),
        (["-temp", "0.5", "x"], "did you mean --temp?"),
        (["-t", "0.5", "x"], "--temp the temperature"),
        (["-s", "42", "x"], "--seed 42"),
        (["--seed", "1e9", "x"], "--seed must be a whole number; got 1e9"),
        (["--temp", "hot", "x"], "--temp must be a number; got hot"),
        (["-5 + 3 is"], "specrun generate -- '-5 + 3 is'"),
        (["-hello there"], "specrun generate -- '-hello there'"),
        (["--what is this"], "specrun generate -- '--what is this'"),
        (["-5"], "specrun generate -- -5"),
        (["--debug", "x"], "specrun --debug generate"),
        (["--mlock", "x"], "--load-mode mlock"),
        (["why", "is"], "quotes"),
        (["x", "-p", "y"], "give it once"),
        (["x", "--raw", "-s", "be brief", "-m", "embedded"], "--raw"),
    ],
)
def test_generate_answers_with_what_is_right(here: SpecrunHere, arguments: list[str], part: str) -> None:
    here("generate", *arguments).assert_fails(2, part)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("generate", "--overlap"),
        ("generate", "--growth-map"),
        ("bench", "--share"),
        ("bench", "--plot"),
        ("tune", "--plot"),
    ],
)
def test_an_option_that_is_gone_is_none(here: SpecrunHere, command: str, option: str) -> None:
    here(command, option).assert_fails(2, f"there is no option {option}")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["chta"], "did you mean chat?"),
        (["models", "lst"], "did you mean list?"),
        (["nothing-like-it"], "--help"),
        (["qwen-14b"], "specrun chat qwen-14b"),
        (["qwen-14b:q8_0"], "specrun chat qwen-14b:q8_0"),
    ],
)
def test_a_command_that_is_none_is_answered_with_one(here: SpecrunHere, arguments: list[str], part: str) -> None:
    here(*arguments).assert_fails(2, part)


def test_the_name_of_a_file_is_no_command_and_no_prompt(
    here: SpecrunHere, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("x")
    here("prompts.txt").assert_fails(2, "specrun chat prompts.txt")
    here("generate", "prompts.txt").assert_fails(5, "-f prompts.txt")
    here("generate", "--jsonl", "prompts.txt").assert_fails(5, "-f prompts.txt")
    assert here("generate", "prompts.txt", "-m", script, stdin="what is in it?").stdout == f"{SCRIPT_TEXT}\n"
    assert here("generate", "-f", "prompts.txt", "-m", script).stdout == f"{SCRIPT_TEXT}\n"


def test_values_that_begin_with_a_dash_or_have_spaces_stay_values(here: SpecrunHere, script: Path) -> None:
    options = ["-m", str(script), "--stop", "- a", "--stop=- b", "-r- c", "-s", "be brief", "-n", "-1"]
    assert here("generate", "x", *options).stdout == f"{SCRIPT_TEXT}\n"
    assert here("generate", *options, "--", "- a list").stdout == f"{SCRIPT_TEXT}\n"


def test_every_name_that_people_bring_along_is_that_of_an_option(here: SpecrunHere, script: Path) -> None:
    names = {name: one for command in EVERY.values() for one in command.params for name in one.opts}
    for option, others in OPTIONS.items():
        assert all(names[other] is names[option] or other in names[option].opts for other in others)
    assert not set(ELSEWHERE) & set(names)
    options = ["--model", str(script), "--model-draft", "none", "--temperature", "0", "--n-predict", "1", "--ctx", "64"]
    assert here("generate", "--prompt", "x", *options).stdout == "one\n"


@pytest.mark.parametrize("group", COMMANDS)
def test_every_command_that_people_bring_along_is_one(group: str) -> None:
    commands = EVERY[group.removeprefix("specrun")].commands
    for name, (word, *rest) in COMMANDS[group].items():
        assert name not in commands
        if not word.startswith("-"):
            assert not rest or rest[0] in commands[word].commands


def test_help_and_version_are_commands_too(here: SpecrunHere) -> None:
    assert here("help").stdout == here("--help").stdout
    assert here("help", "models", "rm").stdout == here("help", "rm").stdout == here("models", "rm", "--help").stdout
    assert here("help", "models", "rm").stdout.startswith("Usage: specrun models rm [OPTIONS] NAME...\n")
    here("help", "chta").assert_fails(2, "did you mean chat?")
    assert here("version").stdout == here("--version").stdout
    assert here("ls", "--help").stdout.startswith("Usage: specrun models list ")

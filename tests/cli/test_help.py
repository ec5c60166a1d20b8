"""Help in two sizes: what people use, on one screen, and everything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from specrun.cli.app import app
from specrun.cli.command import GLOSSARY, explanation, first_sentence, spelling
from tests.conftest import Specrun, SpecrunHere


def commands(command: Any = None, *path: str) -> Iterator[tuple[str, Any]]:
    command = command or typer.main.get_command(app)
    yield " ".join(path), command
    for name, one in getattr(command, "commands", {}).items():
        yield from commands(one, *path, name)


COMMANDS = dict(commands())


def options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_one_screen_of_what_people_use(here: SpecrunHere, name: str) -> None:
    result = here(*name.split(), "--help", COLUMNS="80")
    assert (result.code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    for option in options(COMMANDS[name]):
        shown = re.search(rf"^  (-\w+, )?{re.escape(option.opts[0])}( |,|$)", result.stdout, re.MULTILINE)
        assert option.hidden != bool(shown), option.opts


@pytest.mark.parametrize("name", COMMANDS)
def test_help_all_has_everything_and_the_glossary(here: SpecrunHere, name: str) -> None:
    result = here(*name.split(), "--help-all", COLUMNS="80")
    assert (result.code, result.stderr) == (0, "")
    assert max(map(len, result.stdout.splitlines())) <= 80
    words = " ".join(result.stdout.split())
    for option in options(COMMANDS[name]):
        assert f"{spelling(option)} {explanation(option)}" in words
    assert all(f"{word} {meaning}" in words for word, meaning in GLOSSARY.items())
    assert result.stdout.count("Glossary:") == 1


@pytest.mark.parametrize("name", ["", "chat", "generate", "serve", "tune", "bench", "verify"])
def test_help_ends_with_examples(here: SpecrunHere, name: str) -> None:
    examples = here(*name.split(), "-h").stdout.partition("\nExamples:\n")[2].splitlines()
    assert len(examples) >= 2
    assert all(f"specrun {name}".strip() in line for line in examples)


def test_the_commands_are_grouped_and_each_stands_once(here: SpecrunHere) -> None:
    page = here("--help").stdout
    assert [page.index(heading) for heading in ("Use:", "Make faster:", "Research:", "Options:")] == sorted(
        page.index(heading) for heading in ("Use:", "Make faster:", "Research:", "Options:")
    )
    for name in COMMANDS[""].commands:
        assert len(re.findall(rf"^  {name} ", page, re.MULTILINE)) == 1
    assert "\n  pull " not in here("models", "--help").stdout


def test_every_option_with_a_value_says_what_kind() -> None:
    for command in COMMANDS.values():
        for option in options(command):
            assert option.is_flag or option.metavar, option.opts


def test_a_sentence_ends_with_a_dot_that_ends_it() -> None:
    assert first_sentence("Draw it (.png) with llama.cpp's help. By default not.") == (
        "Draw it (.png) with llama.cpp's help."
    )
    assert first_sentence("no dot") == "no dot"


def test_names_are_bold_on_a_terminal_only(specrun: Specrun) -> None:
    import pexpect

    terminal = specrun.on_terminal("doctor", "--help")
    terminal.expect(pexpect.EOF)
    assert "\x1b[1m--json\x1b[0m" in (terminal.before or "")
    assert "\x1b" not in specrun("doctor", "--help").stdout

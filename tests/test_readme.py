"""What the documents say about the code: tables of options and exit codes, links, and paths of files."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from specrun import errors
from specrun.catalog.entries import catalog, recommended
from specrun.cli.app import app
from specrun.options.expand import OPTIONS, option_of

ROOT = Path(__file__).parent.parent
OPTIONS_PAGE = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
COMMANDS_PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```(?:sh|console|bash)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"(?<![\w./-])(?:specrun|scripts|tests)/[\w./-]*\w")

CLOSED_STDOUT_EXIT_CODE = 141
COMMANDS = ("generate", "chat")


def first_column(head: str) -> list[str]:
    """The first cells of the table of docs/options.md whose first column is headed `head`, without the heading."""
    lines = iter(OPTIONS_PAGE.splitlines())
    assert any(line.startswith(f"| {head} |") for line in lines), f"docs/options.md has no table headed {head}"
    next(lines)  # the line of dashes
    cells = []
    for line in lines:
        if not line.startswith("|"):
            break
        cells.append(re.split(r"(?<!\\)\|", line)[1])
    return cells


def options_in_table() -> set[str]:
    return {name for cell in first_column("option") for name in OPTION.findall(cell)}


def options_of(command: str) -> set[str]:
    """Every name of every option of `command`, except for --help and what other tools call an option."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    parameters = group.commands[command].params
    return {
        name
        for parameter in parameters
        if parameter.param_type_name == "option"
        for name in (*parameter.opts, *parameter.secondary_opts)
        if option_of(name) == name
    }


def exit_codes() -> set[int]:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    codes = {kind.exit_code for kind in classes if issubclass(kind, errors.SpecrunError)}
    by_signals = {128 + number for number in (signal.SIGHUP, signal.SIGTERM)}
    return {0, *codes, *by_signals, errors.INTERRUPTED_EXIT_CODE, CLOSED_STDOUT_EXIT_CODE}


def test_every_option_in_the_table_exists() -> None:
    assert options_in_table() - options_of("generate") == set()


def test_every_option_that_generate_and_chat_share_is_in_the_table() -> None:
    shared = options_of("generate") & options_of("chat")
    assert shared - options_in_table() == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_pages_name_every_option(command: str) -> None:
    assert options_of(command) - set(OPTION.findall(OPTIONS_PAGE + COMMANDS_PAGE)) == set()


def test_the_page_has_all_names_that_people_bring_along() -> None:
    assert first_column("here")
    assert {name for names in OPTIONS.values() for name in names} - set(OPTION.findall(OPTIONS_PAGE)) == set()


def test_the_table_of_exit_codes_has_all_of_them_and_no_others() -> None:
    codes = [int(code) for cell in first_column("exit code") for code in cell.split(",")]
    assert sorted(codes) == sorted(exit_codes())


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_relative_links_lead_to_files(document: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(document.read_text(encoding="utf-8"))]
    relative = [link for link in links if link and "://" not in link]
    assert [link for link in relative if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_files_that_are_named_exist(document: Path) -> None:
    paths = PATH.findall(document.read_text(encoding="utf-8"))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def examples() -> list[str]:
    """The lines of all code blocks that run specrun, from the command on."""
    found = []
    for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        blocks = CODE.findall(document.read_text(encoding="utf-8"))
        joined = "\n".join(blocks).replace("\\\n", " ").replace(" && ", "\n").splitlines()
        found += [match[1] for line in joined if (match := re.search(r"(?:^|\| |-- )(specrun .*)", line.strip()))]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("line", sorted(set(examples())))
def test_every_example_is_a_command_with_its_options(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app)
    while isinstance(command, TyperGroup) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    names = {name for one in command.params for name in (*one.opts, *getattr(one, "secondary_opts", []))} | {
        "--help",
        "--help-all",
    }
    for word in words:
        if word in ("|", ">", "<", ";"):
            break
        is_option = word.startswith("-") and not re.fullmatch(r"-\d*", word)
        assert not is_option or word.partition("=")[0] in names, f"{word} in {line}"


def test_the_recommended_model_is_that_of_models_toml() -> None:
    best = recommended(catalog())
    assert best
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(
        re.findall(r"(?:--target|specrun chat|specrun\.load\(\"|specrun pull) ?\"?([a-z0-9.]+-[0-9.]+b)\b", readme)
    )
    assert named == {best.alias}
    (tried,) = set(re.findall(r"--draft (\S+)", readme))
    assert tried.lower() == catalog()[best.drafts[0]].file.lower()

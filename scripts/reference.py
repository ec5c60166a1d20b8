"""The reference of the command line, from the command line itself: Markdown for the site, and a man page.

    python scripts/reference.py --man docs/man/specrun.1
    python scripts/reference.py --markdown FILE.md

mkdocs makes the Markdown by itself (scripts/site_hooks.py). The man page is kept in the repository, so that a wheel can
be built without anything but hatchling; a test says when it is out of date.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

import specrun
from specrun.cli.app import app
from specrun.cli.command import (
    GLOSSARY,
    by_panel,
    by_panel_of_commands,
    examples,
    explanation,
    spelling,
    text_of,
    usage,
)

HIDDEN = {"--install-completion", "--show-completion"}  # typer's own; docs/installing.md explains them


def commands(command: Any = None, path: tuple[str, ...] = ("specrun",)) -> Iterator[tuple[str, TyperCommand]]:
    """Every command with its name, groups before what is in them."""
    command = command or typer.main.get_command(app)
    yield " ".join(path), command
    if isinstance(command, TyperGroup):
        for name, one in command.commands.items():
            if not one.hidden:
                yield from commands(one, (*path, name))


def options(command: Any) -> dict[str, list[Any]]:
    """The options by the heading under which --help-all has them."""
    options = (one for one in command.params if one.param_type_name == "option")
    return by_panel(one for one in options if not HIDDEN & set(one.opts))


def markdown() -> str:
    """All commands as one page."""
    lines = [
        "# Command reference",
        "",
        "This page is made from the command line itself; `--help-all` says the same.",
        "",
    ]
    for name, command in commands():
        lines += [f"## {name}", "", f"```text\n{name} {usage(command)}\n```", "", "\n\n".join(text_of(command)), ""]
        if found := examples(command):
            lines += ["```sh", *found, "```", ""]
        for panel, rows in by_panel_of_commands(command).items():
            lines += [f"{panel}:", ""]
            lines += [f"- [`{one}`](#{f'{name} {one}'.replace(' ', '-')}): {first}" for one, first in rows]
            lines.append("")
        for panel, own in options(command).items():
            lines += [f"| {panel.lower()} | |", "| --- | --- |"]
            for one in own:
                cells = [f"`{spelling(one)}`".replace("|", "\\|"), explanation(one).replace("|", "\\|")]
                lines.append(f"| {cells[0]} | {cells[1]} |")
            lines.append("")
    lines += ["## Glossary", "", "| word | meaning |", "| --- | --- |"]
    lines += [f"| {word} | {meaning} |" for word, meaning in GLOSSARY.items()]
    return "\n".join(lines)


def man() -> str:
    """All commands as one man page."""
    lines = [
        f'.TH SPECRUN 1 "" "specrun {specrun.__version__}" "User Commands"',
        ".SH NAME",
        "specrun \\- run a language model that does not fit your GPU, several times faster, with the text unchanged",
    ]
    for name, command in commands():
        heading = "SYNOPSIS" if name == "specrun" else name.upper()
        lines += [f".SH {_roff(heading)}", f".B {_roff(f'{name} {usage(command)}')}"]
        lines += [".SH DESCRIPTION"] if name == "specrun" else [".PP"]
        for paragraph in text_of(command):
            lines += [_roff(paragraph), ".PP"]
        if found := examples(command):
            lines += [".nf", *(f"    {_roff(line)}" for line in found), ".fi"]
        for own in options(command).values():
            for one in own:
                lines += [".TP", f".B {_roff(spelling(one))}", _roff(explanation(one))]
    lines.append(".SH GLOSSARY")
    for word, meaning in GLOSSARY.items():
        lines += [".TP", f".B {_roff(word)}", _roff(meaning)]
    lines += [
        ".SH EXIT STATUS",
        "0 is success and 130 means Ctrl\\-C; the other codes are in docs/options.md.",
        ".SH SEE ALSO",
        ".BR llama\\-cli (1)",
    ]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Text in which roff sees no commands of its own."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--man", type=Path, metavar="FILE", help="write the man page")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page of the site")
    chosen = parser.parse_args()
    if not (chosen.man or chosen.markdown):
        parser.error("give --man or --markdown")
    if chosen.man:
        chosen.man.write_text(man(), encoding="utf-8")
    if chosen.markdown:
        chosen.markdown.write_text(markdown(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The reference of the command line, from the command line itself: Markdown for the site, and a man page.

    python scripts/reference.py --man docs/man/specrun.1
    python scripts/reference.py --markdown FILE.md

mkdocs makes the Markdown by itself (scripts/site_hooks.py). The man page is kept in the repository, so that a wheel can
be built without anything but hatchling; a test says when it is out of date.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

import specrun
from specrun.cli.app import app

HIDDEN = {"--install-completion", "--show-completion"}  # typer's own; docs/installing.md explains them
PANEL = "Options"


def commands(command: Any = None, path: tuple[str, ...] = ("specrun",)) -> Iterator[tuple[str, TyperCommand]]:
    """Every command with its name, groups before what is in them."""
    command = command or typer.main.get_command(app)
    yield " ".join(path), command
    if isinstance(command, TyperGroup):
        for name, one in command.commands.items():
            yield from commands(one, (*path, name))


def arguments(command: Any) -> list[Any]:
    """The positional parameters."""
    return [one for one in command.params if one.param_type_name == "argument"]


def options(command: Any) -> dict[str, list[Any]]:
    """The options by the panel that --help shows them in."""
    panels: dict[str, list[Any]] = {}
    for one in command.params:
        if one.param_type_name == "option" and not HIDDEN & set(one.opts):
            panels.setdefault(getattr(one, "rich_help_panel", None) or PANEL, []).append(one)
    return panels


def usage(name: str, command: Any) -> str:
    """A line such as `specrun pull [OPTIONS] NAME...`."""
    words = [name, "[OPTIONS]"] if options(command) else [name]
    for one in arguments(command):
        metavar = one.metavar or one.name.upper()
        words.append(metavar if one.required else f"[{metavar}]")
    if isinstance(command, TyperGroup):
        words.append("COMMAND" if command.commands else "")
    return " ".join(words)


def spelling(option: Any) -> str:
    """All names of an option, with what follows them: `--target, -m MODEL`."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    return f"{names} {option.metavar or _kind(option)}"


def _kind(option: Any) -> str:
    """What kind of value an option without a metavar takes."""
    annotation = option.type_descriptor.annotation
    choices = get_args(annotation)
    return "|".join(map(str, choices)) if choices else str(annotation.__name__).upper()


def explanation(option: Any) -> str:
    """The help, with the default where --help shows it, and the environment variable."""
    parts = [(option.help or "").strip()]
    default = option.default
    if option.show_default and not option.is_flag and default is not None and default != ():
        parts.append(f"By default {default}.")
    if option.envvar:
        parts.append(f"Also {option.envvar}.")
    return " ".join(part for part in parts if part)


def text_of(command: Any) -> str:
    """What --help says about a command, without the options."""
    return inspect.cleandoc(command.help or "")


def markdown() -> str:
    """All commands as one page."""
    lines = ["# Command reference", "", "This page is made from the command line itself; `--help` says the same.", ""]
    for name, command in commands():
        lines += [f"## {name}", "", f"```text\n{usage(name, command)}\n```", "", text_of(command), ""]
        if isinstance(command, TyperGroup) and command.commands:
            for one in command.commands:
                anchor = f"{name} {one}".replace(" ", "-")
                first = text_of(command.commands[one]).partition("\n")[0]
                lines.append(f"- [`{one}`](#{anchor}): {first}")
            lines.append("")
        for panel, own in options(command).items():
            lines += [f"| {panel.lower()} | |", "| --- | --- |"]
            for one in own:
                cells = [f"`{spelling(one)}`".replace("|", "\\|"), explanation(one).replace("|", "\\|")]
                lines.append(f"| {cells[0]} | {cells[1]} |")
            lines.append("")
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
        lines += [f".SH {_roff(heading)}", f".B {_roff(usage(name, command))}"]
        lines += [".SH DESCRIPTION"] if name == "specrun" else [".PP"]
        for block in text_of(command).split("\n\n"):
            body = _roff(re.sub(r"\s*\n\s*", " ", block.strip()))
            lines += [body, ".PP"]
        for own in options(command).values():
            for one in own:
                lines += [".TP", f".B {_roff(spelling(one))}", _roff(explanation(one))]
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

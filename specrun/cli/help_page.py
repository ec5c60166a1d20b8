"""What `--help` and `--help-all` say, and what the man page and the reference say: one text for all of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from textwrap import dedent, fill
from typing import Any

GLOSSARY = {
    "target": "the large model whose text you get",
    "draft": "a small model, or a trained head, that proposes what comes next",
    "draft source": "what drafts without a model: the text itself, a datastore",
    "pair": "a target and its draft, best two sizes of one family",
    "pass": "one run of the target, over one token or over many",
    "token tree": "the likely continuations that one pass checks",
    "budget, depth": "most nodes of a tree; most drafted tokens on one of its paths",
    "plan": "who drafts, and how large the tree is; off is plain decoding",
    "profile": "what `specrun tune` measured here, which chooses the plan",
    "streamed": "read from disk in every pass, where memory has no room",
}


OPTIONS = "Options"
COMMANDS = "Commands"
# A dot that ends a sentence, unlike that of `llama.cpp` or `.png`.
_SENTENCE = re.compile(r".*?[.?!](?=\s|$)", re.DOTALL)
_NAMES_WIDTH = 26  # columns; a longer name has a line of its own


def write(command: Any, context: Any, page: Any, whole: bool, style: Callable[[str], str]) -> None:
    """Write the help of a command.

    page: click's formatter. whole: everything, or only the options that most people use, a sentence for each. style:
    sets a name off where there are colours.
    """
    page.write_usage(context.command_path, usage(command))
    for paragraph in text_of(command) if whole else text_of(command)[:1]:
        page.write(f"\n{_wrapped(paragraph, page.width, '  ')}\n")
    for heading, rows in _sections(command, whole).items():
        if rows:
            page.write("\n".join(["", f"{style(heading)}:", *_definitions(rows, page.width, style), ""]))


def _sections(command: Any, whole: bool) -> dict[str, list[tuple[str, str]]]:
    """What stands under each heading: names, each with its text."""
    shown = [one for one in command.params if whole or not getattr(one, "hidden", False)]
    panels = by_panel(one for one in shown if one.param_type_name == "option")
    if not whole:
        panels = {OPTIONS: [one for options in panels.values() for one in options]}
    sections = {
        "Arguments": [(argument_name(one), one.help or "") for one in shown if one.param_type_name == "argument"],
        **by_panel_of_commands(command),
        **{panel: [(_names(one, whole), _told(one, whole)) for one in own] for panel, own in panels.items()},
    }
    n_hidden = len(command.params) - len(shown)
    more = f"--help-all: {n_hidden} more options, and a glossary." if n_hidden else "--help-all ends with a glossary."
    sections.setdefault(OPTIONS, []).append(("-h, --help", "Show this page." if whole else f"Show this page. {more}"))
    sections["Examples"] = [(line, "") for line in examples(command)]
    sections["Glossary"] = list(GLOSSARY.items()) if whole else []
    return sections


def _definitions(rows: list[tuple[str, str]], width: int, style: Callable[[str], str]) -> Iterator[str]:
    """The lines of a list of names, each with its text beside it, or below it if the name is long."""
    indent = " " * (min(max(len(name) for name, _ in rows), _NAMES_WIDTH) + 4)
    for name, text in rows:
        told = _wrapped(text, width, indent)
        if len(name) + 4 <= len(indent):
            yield f"  {style(name)}{told[len(name) + 2 :]}"
        else:
            yield f"  {style(name)}"
            if told:
                yield told


def _wrapped(text: str, width: int, indent: str) -> str:
    """Text in lines of the width, set in; names such as `--gpu-layers` stay whole."""
    return fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def text_of(command: Any) -> list[str]:
    """The paragraphs of a command's help, without the examples."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs if not _is_example(paragraph)]


def examples(command: Any) -> list[str]:
    """The lines of a command's help that are set in, as code is."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return [line for paragraph in paragraphs if _is_example(paragraph) for line in dedent(paragraph).splitlines()]


def by_panel(parameters: Iterable[Any]) -> dict[str, list[Any]]:
    """Options by the heading under which they stand."""
    panels: dict[str, list[Any]] = {}
    for one in parameters:
        panels.setdefault(getattr(one, "rich_help_panel", None) or OPTIONS, []).append(one)
    return panels


def by_panel_of_commands(group: Any) -> dict[str, list[tuple[str, str]]]:
    """Name and first sentence of a group's commands, by the heading under which they stand; empty for a command."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, command in getattr(group, "commands", {}).items():
        if not command.hidden:
            panel = getattr(command, "rich_help_panel", None) or COMMANDS
            panels.setdefault(panel, []).append((name, first_sentence(text_of(command)[0])))
    return panels


def usage(command: Any) -> str:
    """What may follow the command's name, such as `[OPTIONS] NAME...`."""
    words = ["[OPTIONS]"] if any(one.param_type_name == "option" for one in command.params) else []
    for one in command.params:
        if one.param_type_name == "argument":
            words.append(argument_name(one) if one.required else f"[{argument_name(one)}]")
    return " ".join([*words, *(["COMMAND"] if hasattr(command, "commands") else [])])


def argument_name(argument: Any) -> str:
    """An argument as usage and helps have it."""
    return str(argument.metavar or argument.name.upper())


def spelling(option: Any) -> str:
    """All names of an option, with what follows them: `--target, -m MODEL`."""
    return _with_value(option, [*option.opts, *option.secondary_opts])


def explanation(option: Any) -> str:
    """The help, with the default if the text itself does not say it, and the environment variable."""
    parts = [(option.help or "").strip()]
    default = option.default
    if option.show_default and not option.is_flag and default is not None and default != ():
        parts.append(f"By default {default}.")
    if option.envvar:
        parts.append(f"Also {option.envvar}.")
    return " ".join(part for part in parts if part)


def first_sentence(text: str) -> str:
    """The beginning of a text, up to the end of its first sentence."""
    found = _SENTENCE.match(text)
    return found[0] if found else text


def _names(option: Any, whole: bool) -> str:
    """The names of an option; the usual ones only, a short and a long one, unless `whole`."""
    if whole:
        return spelling(option)
    short = [name for name in option.opts if not name.startswith("--")][:1]
    long = [name for name in option.opts if name.startswith("--")][:1]
    return _with_value(option, [*short, *long, *option.secondary_opts])


def _told(option: Any, whole: bool) -> str:
    return explanation(option) if whole else first_sentence(explanation(option))


def _with_value(option: Any, names: list[str]) -> str:
    joined = ", ".join(names)
    return joined if option.is_flag else f"{joined} {option.metavar}"


def _is_example(paragraph: str) -> bool:
    return paragraph.startswith("    ")

"""What all commands have in common: help in two sizes, which the man page and the reference share, completion,
spellings that people bring along, and what to say about a command line that cannot be understood.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from textwrap import dedent, fill
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from specrun.display_text import did_you_mean
from specrun.errors import UsageError
from specrun.locations import names_file
from specrun.options.expand import COMMANDS, ELSEWHERE, VALUES, option_of
from specrun.views import output

GLOSSARY = {
    "target": "the large model whose text you get",
    "draft": "a small model, or a trained head, that proposes what comes next",
    "draft source": "what drafts without a model: the text itself",
    "pair": "a target and its draft, best two sizes of one family",
    "pass": "one run of the target, over one token or over many",
    "token tree": "the likely continuations that one pass checks",
    "budget, depth": "most nodes of a tree; most drafted tokens on one of its paths",
    "plan": "who drafts, and how large the tree is; off is plain decoding",
    "profile": "what `specrun tune` measured here, which chooses the plan",
    "streamed": "read from disk in every pass, where memory has no room",
}


# A dot that ends a sentence, unlike that of `llama.cpp` or `.png`.
_SENTENCE = re.compile(r".*?[.?!](?=\s|$)", re.DOTALL)
_NAMES_WIDTH = 26  # columns; a longer name has a line of its own


def _sections(command: Any, whole: bool) -> dict[str, list[tuple[str, str]]]:
    """What stands under each heading: names, each with its text."""
    shown = [one for one in command.params if whole or not getattr(one, "hidden", False)]
    arguments = [(_argument_name(one), one.help or "") for one in shown if one.param_type_name == "argument"]
    sections = {"Arguments": arguments, **by_panel_of_commands(command)}
    for panel, own in by_panel(one for one in shown if one.param_type_name == "option").items():
        rows = sections.setdefault(panel if whole else "Options", [])
        for one in own:
            text = explanation(one)
            rows.append((spelling(one, whole), text if whole else first_sentence(text)))
    n_hidden = len(command.params) - len(shown)
    more = f" --help-all: {n_hidden} more options, and a glossary." if n_hidden else " --help-all ends with a glossary."
    sections.setdefault("Options", []).append(("-h, --help", f"Show this page.{'' if whole else more}"))
    sections["Examples"] = [(line, "") for line in examples(command)]
    sections["Glossary"] = list(GLOSSARY.items()) if whole else []
    return sections


def _definitions(rows: list[tuple[str, str]], width: int) -> Iterator[str]:
    """The lines of a list of names, each with its text beside it, or below it if the name is long."""
    indent = " " * (min(max(len(name) for name, _ in rows), _NAMES_WIDTH) + 4)
    for name, text in rows:
        told = _wrapped(text, width, indent)
        if len(name) + 4 <= len(indent):
            yield f"  {_set_off(name)}{told[len(name) + 2 :]}"
        else:
            yield f"  {_set_off(name)}"
            if told:
                yield told


def _wrapped(text: str, width: int, indent: str) -> str:
    """Text in lines of the width, set in; names such as `--gpu-layers` stay whole."""
    return fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def text_of(command: Any) -> list[str]:
    """The paragraphs of a command's help, without the examples."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs if not paragraph.startswith("    ")]


def examples(command: Any) -> list[str]:
    """The lines of a command's help that are set in, as code is."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return [line for paragraph in paragraphs if paragraph.startswith("    ") for line in dedent(paragraph).splitlines()]


def by_panel(parameters: Iterable[Any]) -> dict[str, list[Any]]:
    """Options by the heading under which they stand."""
    panels: dict[str, list[Any]] = {}
    for one in parameters:
        panels.setdefault(getattr(one, "rich_help_panel", None) or "Options", []).append(one)
    return panels


def by_panel_of_commands(group: Any) -> dict[str, list[tuple[str, str]]]:
    """Name and first sentence of a group's commands, by the heading under which they stand; empty for a command."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, command in getattr(group, "commands", {}).items():
        if not command.hidden:
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            panels.setdefault(panel, []).append((name, first_sentence(text_of(command)[0])))
    return panels


def usage(command: Any) -> str:
    """What may follow the command's name, such as `[OPTIONS] NAME...`."""
    words = ["[OPTIONS]"] if any(one.param_type_name == "option" for one in command.params) else []
    for one in command.params:
        if one.param_type_name == "argument":
            words.append(_argument_name(one) if one.required else f"[{_argument_name(one)}]")
    return " ".join([*words, *(["COMMAND"] if hasattr(command, "commands") else [])])


def _argument_name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def spelling(option: Any, whole: bool = True) -> str:
    """The names of an option, with what follows them: `--target, -m MODEL`. whole: all of them, not one short and one
    long name alone.
    """
    names = option.opts
    if not whole:
        short = [name for name in names if not name.startswith("--")][:1]
        names = [*short, *[name for name in names if name.startswith("--")][:1]]
    joined = ", ".join([*names, *option.secondary_opts])
    return joined if option.is_flag else f"{joined} {option.metavar}"


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


_LIST = "--help lists the options"
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help", "--help-all"], "max_content_width": 100}
_IS_WHOLE = "specrun.help-all"  # among what click keeps of a command line


class _WithHelp:
    """What `Command` and `Group` share: `--help` shows the options that are not hidden, `--help-all` everything."""

    params: list[Any]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ctx.meta[_IS_WHOLE] = "--help-all" in args
        return super().parse_args(ctx, args)  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        whole = ctx.meta.get(_IS_WHOLE, False)
        formatter.write_usage(ctx.command_path, usage(self))
        for paragraph in text_of(self) if whole else text_of(self)[:1]:
            formatter.write(f"\n{_wrapped(paragraph, formatter.width, '  ')}\n")
        for heading, rows in _sections(self, whole).items():
            if rows:
                formatter.write("\n".join(["", f"{_set_off(heading)}:", *_definitions(rows, formatter.width), ""]))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """The usual options that begin so; all others, and names of other tools, where nothing else does."""
        found = super().shell_complete(ctx, incomplete)  # type: ignore[misc]
        if not found:
            hidden = [one for one in self.params if getattr(one, "hidden", False)]
            for one in hidden:
                one.hidden = False
            found = super().shell_complete(ctx, incomplete)  # type: ignore[misc]
            for one in hidden:
                one.hidden = True
        return [item for item in found if option_of(item.value) == item.value] or found


class Command(_WithHelp, TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing:
            _check_words(self, ctx.command_path, args)
        return super().parse_args(ctx, args)


class Group(_WithHelp, TyperGroup):
    """A command that has commands. Some of them are also known by the names that other tools have for them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] == "help":
            args = [*args[1:], "--help"]
        name, *rest = args
        args = [*COMMANDS.get(self.name or "", {}).get(name, (name,)), *rest]
        if not ctx.resilient_parsing and not args[0].startswith("-"):
            _check_command(args[0], self.commands)
        return super().resolve_command(ctx, args)


def _set_off(name: str) -> str:
    """A name, set off from the text around it on a terminal that has colours."""
    has_colours = output.stdout.is_terminal and output.stdout.color_system and not output.stdout.no_color
    return typer.style(name, bold=True) if has_colours else name


def _check_words(command: Any, path: str, args: Sequence[str]) -> None:
    """Raise UsageError for what click would take for something else.

    path: the command as the user called it. args: what follows it. A text that begins with a dash is no option, and
    `-temp` is not `-t emp`.
    """
    options = [one for one in command.params if one.param_type_name == "option"]
    names = {name for one in options for name in (*one.opts, *one.secondary_opts)}
    with_value = {name for one in options if not one.is_flag for name in one.opts}
    before = ""
    for word in args:
        if word == "--":
            return
        name = word.partition("=")[0]
        if word.startswith("-") and before not in with_value and name not in names:
            if any(map(str.isspace, word)) and word[:2] not in with_value:
                raise UsageError(f"a text that begins with a dash goes after --, as in {path} -- {shlex.quote(word)}")
            if not name.startswith("--") and f"-{name}" in names:
                raise UsageError(f"there is no option {name}; did you mean -{name}?")
        before = word


def _check_command(name: str, commands: Iterable[str]) -> None:
    """Raise UsageError for what is none of the `commands`."""
    from specrun.catalog.entries import catalog

    if name in commands:
        return
    if names_file(name) or name.partition(":")[0].lower() in catalog():
        instead = f"`specrun chat {shlex.quote(name)}` talks with that model"
    else:
        instead = did_you_mean(name, commands).rstrip() or "--help lists the commands"
    raise UsageError(f"there is no command {name}; {instead}")


def told(error: Any) -> str:
    """What click found wrong, in one line with what to do. error: one of its usage errors."""
    name = getattr(error, "option_name", None)
    if name and hasattr(error, "possibilities"):
        return f"there is no option {name}; {_instead_of(name, error)}"
    parameter = getattr(error, "param", None)
    if parameter and parameter.param_type_name == "option":
        error.param_hint = f"'{parameter.opts[0]}'"
    message = " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ")
    _, wrong, what = message.partition("Input should ")  # these are pydantic's words, of which typer makes an error
    if wrong and parameter and hasattr(error.__cause__, "errors"):
        what = what.partition(",")[0].replace("a valid integer", "a whole number").replace("a valid", "a")
        message = f"{parameter.opts[0]} must {what}; got {error.__cause__.errors()[0]['input']}"
    if "unexpected extra argument" in message:
        message += "; a text of several words goes in quotes"
    more = VALUES.get(parameter.name) if parameter else None
    return f"{message}; {more or _LIST}"


def _instead_of(name: str, error: Any) -> str:
    path = error.ctx.command_path if error.ctx else ""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    if error.ctx and any(name in one.opts for one in error.ctx.find_root().command.params):
        return f"it stands before the command, as in {path.replace(' ', f' {name} ', 1)}"
    if error.possibilities:  # the most similar one first
        return f"did you mean {option_of(error.possibilities[0])}? --help-all lists all options"
    if name[1:].isdigit():
        return f"a text that begins with a dash goes after --, as in {path} -- {name}"
    return _LIST

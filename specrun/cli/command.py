"""What all commands have in common: help in two sizes, completion, spellings that people bring along, and what to say
about a command line that cannot be understood.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from specrun.cli import help_page
from specrun.display_text import did_you_mean
from specrun.errors import UsageError
from specrun.locations import names_file
from specrun.options.expand import COMMANDS, ELSEWHERE, VALUES, option_of
from specrun.views import output

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
        help_page.write(self, ctx, formatter, ctx.meta.get(_IS_WHOLE, False), _set_off)

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
    """What to do instead of giving the option."""
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

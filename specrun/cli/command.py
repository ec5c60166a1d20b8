"""What all commands have in common: help in two sizes, completion, and spellings that people bring along."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from specrun.cli import help_page, mistakes
from specrun.options.brought_along import COMMANDS, option_of
from specrun.views import output

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
            mistakes.check(self, ctx.command_path, args)
        return super().parse_args(ctx, args)


class Group(_WithHelp, TyperGroup):
    """A command that has commands. Some of them are also known by the names that other tools have for them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] == "help":
            args = [*args[1:], "--help"]
        name, *rest = args
        args = [*COMMANDS.get(self.name or "", {}).get(name, (name,)), *rest]
        if not ctx.resilient_parsing and not args[0].startswith("-"):
            mistakes.check_command(args[0], self.commands)
        return super().resolve_command(ctx, args)


def _set_off(name: str) -> str:
    """A name, set off from the text around it on a terminal that has colours."""
    has_colours = output.stdout.is_terminal and output.stdout.color_system and not output.stdout.no_color
    return typer.style(name, bold=True) if has_colours else name

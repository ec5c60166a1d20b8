"""What to say about a command line that cannot be understood: what is wrong, and what is right."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from specrun.display_text import did_you_mean
from specrun.errors import UsageError
from specrun.locations import names_file
from specrun.options.brought_along import ELSEWHERE, VALUES, option_of

_LIST = "--help lists the options"


def check(command: Any, path: str, args: Sequence[str]) -> None:
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
                raise UsageError(f"a text that begins with a dash goes behind --, as in {path} -- {shlex.quote(word)}")
            if not name.startswith("--") and f"-{name}" in names:
                raise UsageError(f"there is no option {name}; did you mean -{name}?")
        before = word


def check_command(name: str, commands: Iterable[str]) -> None:
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
        return f"a text that begins with a dash goes behind --, as in {path} -- {name}"
    return _LIST

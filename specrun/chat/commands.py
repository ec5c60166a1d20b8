"""The commands of a chat: what they are called and what they do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """name with its slash, the arguments it takes, one line of help."""

    name: str
    arguments: str
    help: str


COMMANDS = [
    Command("/help", "", "show this"),
    Command("/system", "[TEXT]", "set the system message (without TEXT: remove it)"),
    Command("/regen", "", "answer the last message again, with another seed"),
    Command("/undo", "", "forget the last message and its answer"),
    Command("/clear", "", "forget the conversation, keep the system message"),
    Command("/set", "[NAME VALUE]", "change a setting (alone: show them all)"),
    Command("/stats", "", "statistics of the last answer"),
    Command("/tree", "", "draw the last token tree and what was accepted of it"),
    Command("/save", "FILE", "save the conversation as JSON"),
    Command("/load", "FILE", "continue a saved conversation"),
    Command("/exit", "", "leave (also Ctrl-D)"),
]

NAMES = [command.name for command in COMMANDS]


def help_text() -> str:
    """All commands, a line each, and how to type a message of several lines."""
    width = max(len(f"{c.name} {c.arguments}") for c in COMMANDS)
    lines = [f"{f'{c.name} {c.arguments}':<{width}}  {c.help}" for c in COMMANDS]
    lines += ["", 'Alt-Enter begins a new line; """ begins and ends a message of several lines.']
    return "\n".join(lines)

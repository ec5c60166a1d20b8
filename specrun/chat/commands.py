"""The names and helps of the commands of a chat."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command.

    name: its name, with the slash.
    arguments: its arguments, as /help shows them.
    help: one line about what it does.
    """

    name: str
    arguments: str
    help: str


COMMANDS = [
    Command("/help", "", "list the commands"),
    Command("/system", "[TEXT]", "set the system message, or remove it if there is no TEXT"),
    Command("/model", "[NAME]", "go on with another model; /model alone lists those that are here"),
    Command("/regen", "", "answer the last message again, with another seed"),
    Command("/undo", "", "forget the last message and its answer"),
    Command("/clear", "", "forget the conversation, but keep the system message"),
    Command("/set", "[NAME VALUE]", "change a setting; /set alone lists all settings"),
    Command("/stats", "", "show statistics of the last answer"),
    Command("/tree", "", "draw the last token tree, with the tokens that were accepted"),
    Command("/save", "FILE", "save the conversation as JSON"),
    Command("/load", "[FILE]", "continue a saved conversation; /load alone lists those of the last chats"),
    Command("/exit", "", "leave (also Ctrl-D)"),
]


NAMES = {command.name for command in COMMANDS}


def help_text() -> str:
    """One line for each command, and how to type a message of several lines."""
    width = max(len(f"{c.name} {c.arguments}") for c in COMMANDS)
    lines = [f"{f'{c.name} {c.arguments}':<{width}}  {c.help}" for c in COMMANDS]
    lines += [
        "",
        'Alt-Enter begins a new line; """ begins and ends a message of several lines; what is pasted stays whole.',
        "The arrow keys and Ctrl-R find what you typed before. `specrun chat --continue` goes on where you left.",
    ]
    return "\n".join(lines)

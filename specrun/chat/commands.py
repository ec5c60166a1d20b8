"""The names and helps of the commands of a chat."""

from __future__ import annotations

# name -> its arguments, as /help shows them, and what it does
COMMANDS = {
    "/help": ("", "list the commands"),
    "/system": ("[TEXT]", "set the system message, or remove it if there is no TEXT"),
    "/model": ("[NAME]", "go on with another model; /model alone lists the models on this machine"),
    "/regen": ("", "answer the last message again, with another seed"),
    "/undo": ("", "forget the last message and its answer"),
    "/clear": ("", "forget the conversation, but keep the system message"),
    "/set": ("[NAME VALUE]", "change a setting; /set alone lists all settings"),
    "/stats": ("", "show statistics of the last answer"),
    "/tree": ("", "draw the last token tree, with the tokens that were accepted"),
    "/save": ("FILE", "save the conversation as JSON"),
    "/load": ("[FILE]", "continue a saved conversation; /load alone lists the conversations of the last chats"),
    "/exit": ("", "leave (also Ctrl-D)"),
}


def help_text() -> str:
    """One line for each command, and how to type a message of several lines."""
    helps = {f"{name} {arguments}": text for name, (arguments, text) in COMMANDS.items()}
    width = max(map(len, helps))
    return "\n".join(
        [
            *(f"{usage:<{width}}  {text}" for usage, text in helps.items()),
            "",
            'Alt-Enter begins a new line; """ begins and ends a message of several lines; what is pasted stays whole.',
            "The arrow keys and Ctrl-R find what you typed before. `specrun chat --continue` goes on where you left.",
        ]
    )

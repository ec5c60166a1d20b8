"""Where messages come from: a comfortable prompt on a terminal, plain lines from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from specrun.chat import commands, settings
from specrun.errors import PromptError

_QUOTES = '"""'


class MessageReader(Protocol):
    """Gives the user's next message. Raises EOFError when there is no more, KeyboardInterrupt on Ctrl-C."""

    def read(self) -> str: ...


class TerminalReader:
    """A prompt with history across runs, lines of its own, and completion of commands.

    history: file that keeps what was typed; its folder is made if it is missing.
    """

    def __init__(self, history: Path) -> None:
        history.parent.mkdir(parents=True, exist_ok=True)
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)),
            completer=_CommandCompleter(),
            complete_while_typing=True,
            key_bindings=_key_bindings(),
            multiline=True,
            prompt_continuation="... ",
            # The hint line is there while nothing was typed, and never after Enter.
            placeholder=[("class:hint", "a message, or /help")],
            style=Style.from_dict({"hint": "ansibrightblack"}),
            reserve_space_for_menu=0,
        )

    def read(self) -> str:
        return _unquoted(self._session.prompt(">>> "))


class PipeReader:
    """One message a line, from stdin; a line that is only three double quotes begins and ends a longer one."""

    def __init__(self) -> None:
        self._n_lines = 0

    def read(self) -> str:
        line = self._line()
        if line.lstrip().startswith(_QUOTES) and not _is_closed(line):
            while not _is_closed(line):
                line += "\n" + self._line()
        return _unquoted(line)

    def _line(self) -> str:
        raw = sys.stdin.buffer.readline()
        if not raw:
            raise EOFError
        self._n_lines += 1
        try:
            return raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise PromptError(f"line {self._n_lines} of stdin is not UTF-8; convert it first") from error


def _is_closed(text: str) -> bool:
    stripped = text.strip()
    return len(stripped) >= 2 * len(_QUOTES) and stripped.endswith(_QUOTES)


def _unquoted(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith(_QUOTES) and _is_closed(text):
        return stripped[len(_QUOTES) : -len(_QUOTES)].strip("\n")
    return text


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        text = event.current_buffer.text
        if text.lstrip().startswith(_QUOTES) and not _is_closed(text):
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


class _CommandCompleter(Completer):
    """Completes command names, and setting names after /set."""

    def get_completions(self, document: Document, _complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/"):
            return
        name, space, rest = text.partition(" ")
        if not space:
            yield from _matches(name, commands.NAMES, lambda c: commands.COMMANDS[commands.NAMES.index(c)].help)
        elif name == "/set" and " " not in rest:
            yield from _matches(rest, settings.NAMES, lambda _: "")


def _matches(typed: str, names: Iterable[str], help_of: Callable[[str], str]) -> Iterable[Completion]:
    return (
        Completion(name, start_position=-len(typed), display_meta=help_of(name))
        for name in names
        if name.startswith(typed)
    )

"""Reading messages: with a prompt, editing and a history on a terminal, as plain lines from a pipe."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from specrun import interrupts
from specrun.catalog.here import local_models
from specrun.chat import commands
from specrun.display_text import one_line
from specrun.errors import PromptError, disk_errors
from specrun.interrupts import Ending
from specrun.locations import locked, owner_only, private_folder, typed, whole_file

_QUOTES = '"""'
_STDIN = 0
_LOCAL_FLAGS = 3  # index of the local flags in the list that tcgetattr returns
_HINT = ("ansibrightblack", "a message, or /help")

# It logs a signal that comes while it reads the history, with a traceback. The signal is raised all the same.
logging.getLogger("prompt_toolkit").addHandler(logging.NullHandler())


class TerminalReader:
    """A prompt on a terminal, with completion of commands, messages of several lines, and a history kept in a file.

    history: the file. It and its folder are made private to the user. note: called with a sentence about a message that
    could not be kept. Raises SpecrunError if the file cannot be written.
    """

    def __init__(self, history: Path, note: Callable[[str], None]) -> None:
        self._note = note
        with disk_errors("written; set SPECRUN_DATA_DIR to a folder that can", history):
            self._history = TypedHistory(history)
        self._session: PromptSession[str] = PromptSession(
            history=self._history,
            completer=_CommandCompleter(),
            # The prompt makes room for the menu of completions only while there are any: without the room the menu
            # would be invisible at the bottom of the screen, and without a menu the room would be a gap.
            complete_while_typing=Condition(lambda: bool(_completions(self._session.default_buffer.document))),
            reserve_space_for_menu=1 + len(commands.COMMANDS),
            key_bindings=_key_bindings(),
            multiline=True,
            search_ignore_case=True,
            prompt_continuation=lambda width, _line, n_wraps: " " * width if n_wraps else "... ",
            # Not after the prompt was left, nor while history is searched.
            placeholder=lambda: [] if get_app().is_done or get_app().layout.is_searching else [_HINT],
            # In `specrun chat | tee answers` the prompt belongs on the terminal.
            output=create_output(always_prefer_tty=True),
        )

    def read(self) -> str:
        """The next message. Raises Ending on SIGTERM and SIGHUP."""
        # An exception in one of its tasks, such as the one that reads the history, would be shown with a traceback, and
        # the terminal left as it is at the prompt.
        with interrupts.held(self._leave) as has_signal:
            text = self._session.prompt(">>> ", pre_run=lambda: self._leave() if has_signal() else None)
        if failure := self._history.failure:
            self._note(f"the next chat will not know this message: {failure.strerror}")
            self._history.failure = None
        return _unquoted(typed(text, "the message", PromptError))

    def _leave(self) -> None:
        """End the prompt; before it has begun, nothing."""
        app = self._session.app

        def leave() -> None:
            if not app.is_done:
                app.exit(exception=Ending())

        if app.loop:
            app.loop.call_soon_threadsafe(leave)


class PipeReader:
    """Reads one message for each line of stdin. Three double quotes begin and end a message of several lines."""

    def __init__(self) -> None:
        self._n_lines = 0

    def read(self) -> str:
        try:
            text = self._line()
            while _is_open(text):
                try:
                    text += "\n" + self._line()
                except EOFError:
                    text += _QUOTES
        except KeyboardInterrupt as interrupt:
            raise Ending from interrupt
        return _unquoted(text)

    def _line(self) -> str:
        raw = sys.stdin.buffer.readline()
        if not raw:
            raise EOFError
        self._n_lines += 1
        try:
            return raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise PromptError(f"line {self._n_lines} of stdin is not UTF-8; convert it first") from error


def _is_open(text: str) -> bool:
    """Whether three quotes begin the text and none end it yet."""
    stripped = text.strip()
    return stripped.startswith(_QUOTES) and not (len(stripped) >= 2 * len(_QUOTES) and stripped.endswith(_QUOTES))


def _unquoted(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith(_QUOTES) and not _is_open(text):
        return stripped[len(_QUOTES) : -len(_QUOTES)].strip("\n")
    return text


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()
    has_text = Condition(lambda: bool(get_app().current_buffer.text))

    @bindings.add("enter", filter=~is_searching)  # there it takes what was found
    def _(event: KeyPressEvent) -> None:
        if _is_open(event.current_buffer.text):
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    # An empty message, so that the next Ctrl-C is the first one again.
    @bindings.add("c-c", filter=has_text & ~is_searching)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.reset()
        event.app.exit(result="")

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


class _CommandCompleter(Completer):
    def get_completions(self, document: Document, _complete_event: CompleteEvent) -> Iterable[Completion]:
        return _completions(document)


def _completions(document: Document) -> list[Completion]:
    """Names of commands, of models after /model, and of settings after /set."""
    text = document.text_before_cursor
    name, space, rest = text.partition(" ")
    if text.startswith("/") and not space:
        helps, typed = {command: text for command, (_, text) in commands.COMMANDS.items()}, name
    elif name == "/model":
        helps, typed = {model.name: "" for model in local_models()}, rest
    elif name == "/set" and " " not in rest:
        helps, typed = dict.fromkeys(commands.SETTINGS, ""), rest
    else:
        return []
    return [
        Completion(name, start_position=-len(typed), display=one_line(name), display_meta=meta)
        for name, meta in helps.items()
        if name.startswith(typed)
    ]


@contextmanager
def without_echo() -> Iterator[None]:
    """Neither keys nor the ^C of Ctrl-C are shown inside the block. The next prompt gets what was typed."""
    if sys.platform == "win32" or not sys.stdin.isatty():  # Windows shows no keys while nothing reads them
        yield
        return
    import termios  # not on Windows

    before, quiet = termios.tcgetattr(sys.stdin), termios.tcgetattr(sys.stdin)
    quiet[_LOCAL_FLAGS] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        with interrupts.undone(lambda: termios.tcsetattr(_STDIN, termios.TCSANOW, before)):
            yield
    finally:
        # Where the terminal is gone, there is nothing to restore.
        with suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


MOST_KEPT = 10_000  # messages, a file of a megabyte where they have 100 characters


class TypedHistory(History):
    """The messages of this and of earlier chats. The file's folder is made private to the user. Raises OSError."""

    def __init__(self, path: Path, most_kept: int = MOST_KEPT) -> None:
        super().__init__()
        self._path = path
        self.failure: OSError | None = None  # why a message could not be kept, until the user was told
        with locked(private_folder(path.parent)):
            os.close(owner_only(str(path), os.O_CREAT | os.O_WRONLY))
            messages = self._read()
            if len(messages) > most_kept:
                with whole_file(path, private=True) as file:
                    file.writelines(map(_line, messages[-most_kept:]))

    def load_history_strings(self) -> Iterable[str]:
        """All messages, the newest first."""
        return reversed(self._read())

    def store_string(self, string: str) -> None:
        """Add a message. It is called in the middle of a prompt, so that a failure can only be told afterwards."""
        try:
            with locked(self._path.parent), open(self._path, "a+b", opener=owner_only) as file:
                file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
                is_cut_off = file.read() not in (b"", b"\n")  # the last byte of what was there
                file.write((b"\n" if is_cut_off else b"") + _line(string))
        except OSError as error:
            self.failure = error

    def _read(self) -> list[str]:
        found = []
        for line in self._path.read_bytes().split(b"\n"):
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):  # a damaged line
                continue
            if isinstance(message, str):
                found.append(message)
        return found


def _line(message: str) -> bytes:
    # Lone surrogates, which a terminal that is not UTF-8 may give, are escaped as all that is not ASCII.
    return json.dumps(message).encode() + b"\n"

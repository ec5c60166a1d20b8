"""What was typed in chats, kept in a file for the arrow keys and Ctrl-R: a line of JSON for each message.

A message that was half written when the process was killed is a line that is no JSON, and is left out. Chats that run
at the same time add their lines one after the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import History

from specrun.locations import locked, owner_only, private_folder, whole_file

MOST_KEPT = 10_000  # messages; chosen by hand


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
        """The messages in the file, the oldest first."""
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

"""Saved conversations: `{"target": ..., "draft": ..., "messages": [{"role": ..., "content": ...}, ...]}` as JSON.

What the model thought before an answer is `reasoning_content` or `thinking`, as its chat template calls it.

The conversations of the last chats are kept so that `specrun chat --continue` and `/load` can go on with them. Every
chat has a file of its own, so chats that run at the same time cannot lose each other's conversation. A file is removed
only when another file has all its messages, when the user takes all of them back, or when there are more than
`MOST_KEPT`.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrun.errors import SpecrunError, UsageError, disk_errors
from specrun.llama.chat_template import Message
from specrun.locations import (
    data_dir,
    json_text,
    names_file,
    parse_json,
    private_folder,
    read_bytes,
    set_aside,
    whole_file,
)

MOST_KEPT = 30
_PREFIX, _SUFFIX = "conversation-", ".json"
_ROLES = ("system", "user", "assistant")


class DamagedConversationError(SpecrunError):
    """A file that is not a saved conversation."""


@dataclass(frozen=True)
class LastConversation:
    """target: the name of the model, None for the embedded pair. messages: the conversation. draft: what `--draft`
    named, if anything. path: its file.
    """

    target: str | None
    messages: list[Message]
    draft: str | None = None
    path: Path | None = None

    @property
    def question(self) -> str:
        """The first line of the last message of the user; empty without one."""
        asked = [message["content"] for message in self.messages if message["role"] == "user"]
        return asked[-1].splitlines()[0] if asked and asked[-1] else ""


def save(path: Path, conversation: LastConversation) -> None:
    """Write the conversation to `path` atomically. Raises SpecrunError if it cannot be written."""
    pair = {"target": _anywhere(conversation.target)}
    if conversation.draft:
        pair["draft"] = _anywhere(conversation.draft)
    text = json_text({**pair, "messages": conversation.messages}, indent=1) + "\n"
    with disk_errors("written", path):
        path.parent.stat()  # fails if the folder is missing: `/save` creates no folders
        with whole_file(path, private=True) as file:
            file.write(text.encode())


def _anywhere(name: str | None) -> str | None:
    """The name of a model, as it is found from any folder."""
    return str(Path(name).absolute()) if name and names_file(name) else name


def read(path: Path) -> LastConversation:
    """A saved conversation. Raises SpecrunError if the file cannot be read or is not a saved conversation."""
    data = read_bytes(path, SpecrunError)
    try:
        saved = parse_json(data)
        messages = [_message(one) for one in saved["messages"]]
        target, draft = (name if isinstance(name := saved.get(key), str) else None for key in ("target", "draft"))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedConversationError(f"{path} is not a saved conversation; name another file") from error
    return LastConversation(target, messages, draft, path)


def _message(saved: Any) -> Message:
    message = Message(role=saved["role"], content=saved["content"])
    for key in ("reasoning_content", "thinking"):
        if key in saved:
            message[key] = saved[key]
    if message["role"] not in _ROLES or not all(isinstance(value, str) for value in message.values()):
        raise ValueError
    json.dumps(message, ensure_ascii=False).encode()  # raises ValueError for lone surrogates, which no model can read
    return message


def folder() -> Path:
    """Where chats keep what was said and typed. Only the owner may read what is there."""
    return data_dir() / "chats"


def kept() -> list[Path]:
    """The files of the conversations, the newest first."""
    found = []
    for path in folder().glob(f"{_PREFIX}*{_SUFFIX}"):
        try:
            found.append((path.stat().st_mtime_ns, path))
        except FileNotFoundError:  # another chat has just removed it
            continue
    return [path for _, path in sorted(found, reverse=True)]


def last() -> LastConversation:
    """The conversation that was kept last. Raises UsageError without one, and SpecrunError if it cannot be read."""
    path = next(iter(kept()), None)
    if not path:
        raise UsageError("there is no conversation to continue yet; start one with `specrun chat`")
    try:
        return read(path)
    except DamagedConversationError as error:
        done = f"{path} is damaged, and {set_aside(path)}"
        raise SpecrunError(f"{done}; the same command goes on with the conversation before") from error


class Keeper:
    """Keeps the conversation of one chat. continued: the conversation that it goes on with, if any."""

    def __init__(self, continued: LastConversation | None = None) -> None:
        self.go_on_with(continued)

    def go_on_with(self, continued: LastConversation | None) -> None:
        """What is kept from now on is another conversation, in a file of its own. The one before stays."""
        self._before = continued and continued.path
        self._said_before = _said(continued.messages) if continued else []
        self._path: Path | None = None

    def keep(self, conversation: LastConversation, takes_back: bool = False) -> None:
        """Keep the conversation as it is now; one that nobody has said anything in is not kept. Only the owner may read
        it. Raises SpecrunError.

        takes_back: whether the user took a part of it back, which then is in no file of this conversation.
        """
        with disk_errors("written", folder()):
            private_folder(folder())
        path = self._path or folder() / f"{_PREFIX}{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}{_SUFFIX}"
        if any(message["role"] == "user" for message in conversation.messages):
            save(path, conversation)
            self._path = path
        else:
            _remove(path)
        if self._before and self._has_no_more(conversation.messages, takes_back):
            _remove(self._before)
            self._before = None
        for superfluous in kept()[MOST_KEPT:]:
            _remove(superfluous)

    def _has_no_more(self, messages: list[Message], takes_back: bool) -> bool:
        """Whether the file that this chat goes on with has nothing that is still wanted. Another chat may have gone on
        with it as well.
        """
        try:
            before = _said(read(self._before).messages) if self._before else []
        except SpecrunError:
            return False
        now = _said(messages)
        is_taken_back = takes_back and before == self._said_before and before[: len(now)] == now
        return is_taken_back or now[: len(before)] == before


def _said(messages: list[Message]) -> list[Message]:
    """What was said in a conversation."""
    return [message for message in messages if message["role"] != "system"]


def _remove(path: Path) -> None:
    with disk_errors("removed", path):
        path.unlink(missing_ok=True)

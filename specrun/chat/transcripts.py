"""Saved conversations: `{"target": ..., "messages": [{"role": ..., "content": ...}, ...]}` as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from specrun.errors import SpecrunError
from specrun.llama.chat_template import Message
from specrun.locations import parse_json, read_bytes, whole_file

_ROLES = ("system", "user", "assistant")


class DamagedConversationError(SpecrunError):
    """A file that is not a saved conversation."""


def save_messages(path: Path, messages: list[Message], target: str | None) -> None:
    """Write the conversation to `path` atomically. Raises SpecrunError if it cannot be written.

    target: the name of the model, None for the embedded pair.
    """
    text = json.dumps({"target": target, "messages": messages}, ensure_ascii=False, indent=1) + "\n"
    try:
        path.parent.stat()  # fails if the folder is missing: `/save` creates no folders
        with whole_file(path, private=True) as file:
            file.write(text.encode())
    except OSError as error:
        raise SpecrunError(f"{path} cannot be written: {error.strerror}") from error


def load_messages(path: Path) -> list[Message]:
    """Read a conversation. Raises SpecrunError if the file is missing or is not a saved conversation."""
    data = read_bytes(path, SpecrunError)
    try:
        messages = parse_json(data)["messages"]
        valid = [{"role": m["role"], "content": m["content"]} for m in messages if isinstance(m["content"], str)]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedConversationError(f"{path} is not a saved conversation; /save makes one") from error
    if len(valid) != len(messages) or any(message["role"] not in _ROLES for message in valid):
        raise DamagedConversationError(f"{path} is not a saved conversation; /save makes one")
    return [Message(role=message["role"], content=message["content"]) for message in valid]

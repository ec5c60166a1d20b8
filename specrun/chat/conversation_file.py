"""The last conversation, kept so that `specrun chat --continue` can go on with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from specrun.chat.transcripts import DamagedConversationError, load_messages, save_messages
from specrun.errors import SpecrunError, UsageError
from specrun.llama.chat_template import Message
from specrun.locations import data_dir, set_aside


@dataclass(frozen=True)
class LastConversation:
    """target: the name of the model, None for the embedded pair. messages: the conversation."""

    target: str | None
    messages: list[Message]


def _path() -> Path:
    return data_dir() / "conversation.json"


def keep(conversation: LastConversation) -> None:
    """Keep a conversation instead of the one before. Only the owner may read it. Raises SpecrunError."""
    try:
        _path().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecrunError(f"{_path()} cannot be written: {error.strerror}") from error
    save_messages(_path(), conversation.messages, conversation.target)


def last() -> LastConversation:
    """The conversation that was kept last.

    Raises UsageError if there is none, and SpecrunError if it cannot be read; a damaged file is set aside, so that the
    next conversation does not overwrite it.
    """
    if not _path().exists():
        raise UsageError("there is no conversation to continue yet; start one with `specrun chat`")
    try:
        messages = load_messages(_path())
    except DamagedConversationError as error:
        raise SpecrunError(
            f"{_path()} is damaged, and {set_aside(_path())}; `specrun chat` begins a new conversation"
        ) from error
    target = json.loads(_path().read_bytes()).get("target")
    return LastConversation(target if isinstance(target, str) else None, messages)

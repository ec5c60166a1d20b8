"""The last conversation, kept so that `specrun chat --continue` can go on with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from specrun.chat.transcripts import load_messages, save_messages
from specrun.errors import UsageError
from specrun.llama.chat_template import Message
from specrun.locations import data_dir


@dataclass(frozen=True)
class LastConversation:
    """target: the name of the model, None for the embedded pair. messages: the conversation."""

    target: str | None
    messages: list[Message]


def _path() -> Path:
    return data_dir() / "conversation.json"


def keep(conversation: LastConversation) -> None:
    """Keep a conversation instead of the one before. Only the owner may read it. Raises SpecrunError."""
    _path().parent.mkdir(parents=True, exist_ok=True)
    save_messages(_path(), conversation.messages, conversation.target)


def last() -> LastConversation:
    """The conversation that was kept last. Raises UsageError if there is none, SpecrunError if it cannot be read."""
    if not _path().exists():
        raise UsageError("there is no conversation to continue yet; start one with `specrun chat`")
    messages = load_messages(_path())
    return LastConversation(json.loads(_path().read_bytes()).get("target"), messages)

"""The fields of /v1/chat/completions that are not those of sampling: messages, number of answers, streaming."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specrun.engine.request import Request
from specrun.llama.chat_template import Message
from specrun.serving.fields import Fields
from specrun.serving.request_fields import MOST_LOGPROBS, Defaults, read_request

MOST_ANSWERS = 16
_MOST_MESSAGES = 10_000
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True)
class Sending:
    """How many answers are sent, and how.

    n: number of answers. stream: whether pieces are sent as they are written. include_usage: whether a stream ends with
    the numbers of tokens. anew: whether the prompt is split into tokens and read again, whatever was kept of it.
    """

    n: int
    stream: bool
    include_usage: bool
    anew: bool


@dataclass(frozen=True)
class ChatCall:
    """A request for the next message of a conversation.

    messages: the conversation. request: how the answer is written, without a prompt. sending: how it is sent.
    """

    messages: list[Message]
    request: Request
    sending: Sending


def read_chat_call(body: dict[str, Any], defaults: Defaults, n_vocab: int) -> ChatCall:
    """What the JSON asks for. n_vocab: tokens that the model has. Raises ApiError for wrong fields."""
    fields = Fields(body)
    request = replace(read_request(fields, defaults, n_vocab), logprobs=_logprobs(fields))
    return ChatCall(_messages(fields), request, read_sending(fields))


def _logprobs(fields: Fields) -> int | None:
    top = fields.integer("top_logprobs", 0, MOST_LOGPROBS)
    if not fields.flag("logprobs"):
        if top:
            fields.refuse("top_logprobs", "needs logprobs to be true")
        return None
    return top or 0


def read_sending(fields: Fields) -> Sending:
    """How the answers are to be sent."""
    n = fields.integer("n", 1, MOST_ANSWERS) or 1
    include_usage = fields.inner("stream_options").flag("include_usage")
    return Sending(n, bool(fields.flag("stream")), bool(include_usage), fields.flag("cache_prompt") is False)


def _messages(fields: Fields) -> list[Message]:
    messages = fields.items("messages", _MOST_MESSAGES)
    if not messages:
        fields.refuse("messages", "must be a list with at least one message")
    return [_message(fields, i, message) for i, message in enumerate(messages)]


def _message(fields: Fields, i: int, message: Any) -> Message:
    name = f"messages[{i}]"
    if not isinstance(message, dict):
        fields.refuse(name, "must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        fields.refuse(f"{name}.role", f"must be one of {', '.join(_ROLES)}")
    return {"role": _ROLES[role], "content": _content(fields, f"{name}.content", message.get("content"))}


def _content(fields: Fields, name: str, content: Any) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        fields.refuse(name, "must be a string or a list of parts")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            fields.refuse(name, f"may have parts of the type text only; this model reads no {kind or 'other parts'}")
        if not isinstance(part.get("text"), str):
            fields.refuse(name, "has a part without a text")
    return "\n".join(part["text"] for part in content)

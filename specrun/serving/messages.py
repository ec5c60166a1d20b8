"""The messages of a request, as chat templates take them: texts, calls of tools, and what the tools answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specrun.llama.chat_template import Message
from specrun.serving.fields import Fields
from specrun.serving.reading.form import AnswerForm

_MOST_MESSAGES = 10_000
_MOST_CALLS = 1000  # in a message
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def read_messages(fields: Fields, form: AnswerForm) -> list[Message]:
    """The conversation. Raises ApiError."""
    given = fields.items("messages", _MOST_MESSAGES)
    if not given:
        fields.refuse("messages", "must be a list with at least one message")
    messages: list[Message] = []
    called: dict[str, str] = {}  # the tool of each call so far, by the call's id
    for i, message in enumerate(given):
        name = f"messages[{i}]"
        if not isinstance(message, dict):
            fields.refuse(name, "must be an object with role and content")
        messages.append(_message(fields.inner_of(name, message), form, called))
    return messages


def _message(fields: Fields, form: AnswerForm, called: dict[str, str]) -> Message:
    role = fields.raw("role")
    if not isinstance(role, str) or role not in _ROLES:
        fields.refuse("role", f"must be one of {', '.join(_ROLES)}")
    message: Message = {"role": _ROLES[role], "content": ""}
    if role == "assistant":
        _read_assistant(fields, form, message, called)
    if not (message.get("tool_calls") and fields.raw("content") is None):
        message["content"] = text_of(fields, fields.raw("content"))
    if role == "assistant" and form.calls == "harmony":
        _name_thinking(message)
    if role == "tool":
        call = fields.text("tool_call_id") or ""
        message["tool_call_id"] = call
        tool = fields.text("name") or called.get(call)
        if tool:
            message["name"] = tool
    return message


def _read_assistant(fields: Fields, form: AnswerForm, message: Message, called: dict[str, str]) -> None:
    reasoning = fields.text("reasoning_content")
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = [_call(fields, i, call, form) for i, call in enumerate(fields.items("tool_calls", _MOST_CALLS))]
    if calls:
        message["tool_calls"] = calls
        called.update({call["id"]: call["function"]["name"] for call in calls})


def _name_thinking(message: Message) -> None:
    """gpt-oss's template calls reasoning `thinking`, and refuses it beside text in a message with calls."""
    reasoning = message.pop("reasoning_content", "")
    if reasoning and not (message.get("tool_calls") and message["content"]):
        message["thinking"] = reasoning


def _call(fields: Fields, i: int, call: Any, form: AnswerForm) -> dict[str, Any]:
    name = f"tool_calls[{i}]"
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        fields.refuse(name, "must be an object with an id and a function that has a name and arguments")
    arguments = function.get("arguments")
    if not isinstance(arguments, str | dict | None):
        fields.refuse(f"{name}.function.arguments", "must be a string with a JSON object")
    return tool_call(str(call.get("id") or ""), function["name"], arguments, form)


def tool_call(call_id: str, name: str, arguments: str | Mapping[str, Any] | None, form: AnswerForm) -> dict[str, Any]:
    """A call that the assistant made, for the template: with arguments as an object, or as the text that was written.

    That text, where the template takes it, is what the cache has already.
    """
    if isinstance(arguments, str) and not form.takes_text:
        arguments = _parsed(arguments)
    elif isinstance(arguments, Mapping) and form.takes_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    empty: str | dict[str, Any] = "{}" if form.takes_text else {}
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments or empty}}


def _parsed(arguments: str) -> str | dict[str, Any]:
    """The object, or the text if it is none: an answer that was cut off may have left half of one."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def text_of(fields: Fields, content: Any) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        fields.refuse("content", "must be a string or a list of parts")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            fields.refuse("content", f"may have parts of the type text only; no {kind or 'other parts'}")
        if not isinstance(part.get("text"), str):
            fields.refuse("content", "has a part without a text")
    return "\n".join(part["text"] for part in content)

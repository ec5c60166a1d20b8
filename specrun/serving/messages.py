"""The messages of a request, as chat templates take them: texts, calls of tools, and what the tools answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, InstanceOf, ValidationInfo, field_validator

from specrun.llama.chat_template import Message
from specrun.reading.calls import whole_characters
from specrun.reading.form import AnswerForm
from specrun.serving.bodies import Fields, must, parsed

MOST_MESSAGES = 10_000
_MOST_CALLS = 1000  # in a message


class _Function(Fields):
    name: str
    arguments: Annotated[str | InstanceOf[dict[str, Any]] | None, must("be a string with a JSON object")] = None


class _Call(Fields):
    id: Any = None
    function: _Function


_Calls = list[Annotated[_Call, must("be an object with an id and a function that has a name and arguments")]]


class _Message(Fields):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    reasoning_content: str = ""
    tool_calls: Annotated[_Calls, Field(max_length=_MOST_CALLS, fail_fast=True)] = Field([])
    tool_call_id: str = ""
    name: str = ""
    content: str = Field(None, validate_default=True)

    @field_validator("content", mode="before")
    @classmethod
    def _text(cls, content: Any, read: ValidationInfo) -> str:
        is_call = read.data.get("role") == "assistant" and read.data.get("tool_calls")
        return "" if content is None and is_call else joined(content)


class _Conversation(Fields):
    messages: Annotated[list[_Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]


def joined(content: Any, kind: str | None = "text") -> str:
    """The text of a message, which may come in parts. kind: the type that parts must have.

    Raises ValueError for anything else.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("must be a string or a list of parts")
    for part in content:
        if not isinstance(part, dict) or (kind and part.get("type") != kind):
            raise ValueError("may have parts of the type text only")
        if not isinstance(part.get("text"), str):
            raise ValueError("has a part without a text")
    return "\n".join(part["text"] for part in content)


def read_messages(body: Mapping[str, Any], form: AnswerForm) -> list[Message]:
    """The conversation. Raises ApiError."""
    called: dict[str, str] = {}  # the tool of each call so far, by the call's id
    return [_for_template(given, form, called) for given in parsed(_Conversation, body).messages]


def _for_template(given: _Message, form: AnswerForm, called: dict[str, str]) -> Message:
    message: Message = {"role": "system" if given.role == "developer" else given.role, "content": given.content}
    if given.role == "assistant":
        if given.tool_calls:
            message["tool_calls"] = [_call(call, form) for call in given.tool_calls]
            called.update({call["id"]: call["function"]["name"] for call in message["tool_calls"]})
        # gpt-oss's template refuses reasoning beside text in a message with calls.
        if given.reasoning_content and not (form.calls == "harmony" and given.tool_calls and given.content):
            message[form.reasoning_key] = given.reasoning_content
    elif given.role == "tool":
        message["tool_call_id"] = given.tool_call_id
        tool = given.name or called.get(given.tool_call_id)
        if tool:
            message["name"] = tool
    return message


def _call(call: _Call, form: AnswerForm) -> dict[str, Any]:
    """A call that the assistant made, for the template: with arguments as an object, or as the text that was written.

    That text, where the template takes it, is what the cache has already.
    """
    arguments = call.function.arguments
    if isinstance(arguments, str) and not form.takes_text:
        arguments = _parsed(arguments)
    elif isinstance(arguments, dict) and form.takes_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": call.function.name, "arguments": arguments or ("{}" if form.takes_text else {})}
    return {"id": str(call.id or ""), "type": "function", "function": function}


def _parsed(arguments: str) -> str | dict[str, Any]:
    """The object, in whole characters, or the text if it is none, as an answer that was cut off may have left it."""
    try:
        value = json.loads(whole_characters(json.dumps(json.loads(arguments or "{}"), ensure_ascii=False)))
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments

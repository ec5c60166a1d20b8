"""Requests in Anthropic's shape, turned into OpenAI's, so that both are read in one way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from specrun.serving.fields import Fields

_MOST_MESSAGES = 10_000
_MOST_BLOCKS = 10_000  # in a message
_MOST_TOOLS = 512
_SAME = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "repeat_penalty", "chat_template_kwargs")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def openai_body(body: Mapping[str, Any], needs_length: bool = True) -> dict[str, Any]:
    """The body of /v1/chat/completions that asks for the same. Raises ApiError for what it cannot say.

    needs_length: whether `max_tokens` must be there, as it must with Anthropic.
    """
    fields = Fields(body)
    if needs_length and fields.integer("max_tokens", 1, 2**31 - 1) is None:
        fields.refuse("max_tokens", "is missing")
    result: dict[str, Any] = {name: body[name] for name in _SAME if body.get(name) is not None}
    result["messages"] = [*_system(fields), *_messages(fields)]
    stops = fields.items("stop_sequences", _MOST_BLOCKS)
    if stops:
        result["stop"] = stops
    result |= _tools(fields)
    if fields.inner("thinking").text("type") == "disabled":
        result["reasoning_effort"] = "none"
    return result


def _system(fields: Fields) -> list[dict[str, Any]]:
    system = fields.raw("system")
    return [] if not system else [{"role": "system", "content": _text(fields, "system", system)}]


def _messages(fields: Fields) -> Iterator[dict[str, Any]]:
    for i, message in enumerate(fields.items("messages", _MOST_MESSAGES)):
        name = f"messages[{i}]"
        if not isinstance(message, dict):
            fields.refuse(name, "must be an object with role and content")
        inner = fields.inner_of(name, message)
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            inner.refuse("role", "must be user, assistant or system")
        if isinstance(content, str):
            yield {"role": role, "content": content}
        elif role == "system":  # Claude Code has them between the others
            yield {"role": role, "content": _text(inner, "content", content)}
        elif role == "assistant":
            yield _assistant(inner)
        else:
            yield from _user(inner)


def _blocks(fields: Fields) -> Iterator[tuple[Fields, str]]:
    """The blocks of a message, with their types."""
    for i, block in enumerate(fields.items("content", _MOST_BLOCKS)):
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            fields.refuse(f"content[{i}]", "must be an object with a type")
        yield fields.inner_of(f"content[{i}]", block), kind


def _user(fields: Fields) -> Iterator[dict[str, Any]]:
    """A message of the user: the answers of tools, and the text behind them."""
    texts = []
    for block, kind in _blocks(fields):
        if kind == "text":
            texts.append(block.text("text") or "")
        elif kind == "tool_result":
            content = block.raw("content")
            text = _text(block, "content", content) if content else ""
            yield {"role": "tool", "tool_call_id": block.text("tool_use_id") or "", "content": text}
        else:
            block.refuse("type", f"must be text or tool_result; this model reads no {kind}")
    if texts:
        yield {"role": "user", "content": "\n".join(texts)}


def _assistant(fields: Fields) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for block, kind in _blocks(fields):
        if kind == "text":
            texts.append(block.text("text") or "")
        elif kind == "thinking":
            thoughts.append(block.text("thinking") or "")
        elif kind == "tool_use":
            arguments = json.dumps(block.inner("input").values, ensure_ascii=False)
            function = {"name": block.text("name"), "arguments": arguments}
            calls.append({"id": block.text("id"), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            block.refuse("type", "must be text, thinking or tool_use in a message of the assistant")
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _text(fields: Fields, name: str, content: Any) -> str:
    """A text, or several in blocks."""
    if isinstance(content, str):
        return content
    blocks = fields.items(name, _MOST_BLOCKS)
    if not all(isinstance(block, dict) and isinstance(block.get("text"), str) for block in blocks):
        fields.refuse(name, "must be a string or blocks of the type text")
    return "\n".join(block["text"] for block in blocks)


def _tools(fields: Fields) -> dict[str, Any]:
    tools = []
    for i, tool in enumerate(fields.items("tools", _MOST_TOOLS)):
        if not isinstance(tool, dict):
            fields.refuse(f"tools[{i}]", "must be an object with a name and an input_schema")
        # Tools of other types run on Anthropic's servers. The model is not told of them.
        if tool.get("type") in (None, "custom"):
            function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
            tools.append({"type": "function", "function": {**function, "description": tool.get("description")}})
    if not tools:
        return {}
    choice = fields.inner("tool_choice")
    kind = choice.text("type") or "auto"
    if kind != "tool" and kind not in _CHOICES:
        choice.refuse("type", "must be auto, any, tool or none")
    named = {"type": "function", "function": {"name": choice.text("name")}}
    return {
        "tools": tools,
        "tool_choice": named if kind == "tool" else _CHOICES[kind],
        "parallel_tool_calls": not choice.flag("disable_parallel_tool_use"),
    }

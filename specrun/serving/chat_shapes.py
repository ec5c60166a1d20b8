"""What readers tell of answers, as OpenAI's messages and their additions in a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specrun.serving.reading.deltas import CallDelta, Delta


def message_of(deltas: Iterable[Delta]) -> dict[str, Any]:
    """The whole message of an answer."""
    content, reasoning, calls = "", "", list[dict[str, Any]]()
    for delta in deltas:
        content += delta.content
        reasoning += delta.reasoning
        if delta.call and delta.call.name is not None:
            calls.append(_begun(delta.call))
        elif delta.call:
            calls[-1]["function"]["arguments"] += delta.call.arguments
    message: dict[str, Any] = {"role": "assistant", "content": None if calls and not content else content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def delta_json(delta: Delta) -> dict[str, Any]:
    """An addition to a message."""
    if delta.call:
        call = delta.call
        more = {"function": {"arguments": call.arguments}} if call.name is None else _begun(call)
        return {"tool_calls": [{"index": call.index, **more}]}
    return {"reasoning_content": delta.reasoning} if delta.reasoning else {"content": delta.content}


def _begun(call: CallDelta) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}

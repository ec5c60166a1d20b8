"""Answers in Anthropic's shape: a message of blocks, and the events of its stream."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from specrun.engine.completion import Completion
from specrun.engine.statistics import Statistics
from specrun.serving.answers import Answer, Shape, frame
from specrun.serving.api_error import ApiError
from specrun.serving.reading.deltas import Delta
from specrun.serving.reading.json_call import whole_characters
from specrun.serving.usage import cached_tokens

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _event(kind: str, **fields: Any) -> bytes:
    return frame({"type": kind, **fields}, event=kind)


class AnthropicShape(Shape):
    """The shape of /v1/messages. n_prompt: tokens of the prompt."""

    keep_alive = _event("ping")

    def __init__(self, model_name: str, n_prompt: int) -> None:
        self._n_prompt = n_prompt
        self._head = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": model_name}
        self._index = -1  # of the latest block
        self._open: tuple[str, int] | None = None  # what the open block is: its type, and a number for each call

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The message as one object."""
        content = content_json(answers[0].deltas)
        return {**self._head, "content": content, **_stop_json(answers[0]), "usage": _usage_json(answers[0].ended)}

    def begin(self) -> Iterator[bytes]:
        """The message without anything in it."""
        usage = {"input_tokens": self._n_prompt, "output_tokens": 0}
        message: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield _event("message_start", message=message)
        yield self.keep_alive

    def added(self, addition: Answer) -> Iterator[bytes]:
        """Events of its blocks, and at the end of the message how it ended."""
        for delta in addition.deltas:
            kind, begin, more = _block(delta)
            if kind != self._open:
                yield from self._close()
                self._index += 1
                self._open = kind
                yield _event("content_block_start", index=self._index, content_block=begin)
            if more:
                yield _event("content_block_delta", index=self._index, delta=more)
        if addition.completion:
            yield from self._close()
            yield _event("message_delta", delta=_stop_json(addition), usage=_usage_json(addition.completion))
            yield _event("message_stop")

    def failure(self, error: ApiError) -> bytes:
        """The error's event."""
        return frame(error.as_anthropic(), event="error")

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            yield _event("content_block_stop", index=self._index)
        self._open = None


def content_json(deltas: Sequence[Delta]) -> list[dict[str, Any]]:
    """The blocks of a whole answer."""
    blocks: list[dict[str, Any]] = []
    last: tuple[str, int] | None = None
    for delta in deltas:
        kind, begin, more = _block(delta)
        if kind != last:
            blocks.append(begin | ({"input": ""} if delta.call else {}))
            last = kind
        if delta.call:
            blocks[-1]["input"] += delta.call.arguments
        elif more:
            blocks[-1][kind[0]] += more[kind[0]]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = _object(block["input"])
    return blocks


def _block(delta: Delta) -> tuple[tuple[str, int], dict[str, Any], dict[str, Any] | None]:
    """The block that an addition belongs to, how such a block begins, and the addition; None for nothing."""
    if delta.call:
        call = delta.call
        begin: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        more = {"type": "input_json_delta", "partial_json": call.arguments} if call.arguments else None
        return ("tool_use", call.index), begin, more
    if delta.reasoning:
        begin = {"type": "thinking", "thinking": "", "signature": ""}
        return ("thinking", 0), begin, {"type": "thinking_delta", "thinking": delta.reasoning}
    return ("text", 0), {"type": "text", "text": ""}, {"type": "text_delta", "text": delta.content}


def _object(text: str) -> dict[str, Any]:
    """A call's arguments; empty for half an object, of an answer that was cut off."""
    try:
        value = json.loads(whole_characters(json.dumps(json.loads(text), ensure_ascii=False)))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _usage_json(completion: Completion) -> dict[str, int]:
    """Numbers of tokens. Anthropic does not count those of the cache as input."""
    statistics: Statistics = completion.statistics
    cached = cached_tokens(statistics)
    return {
        "input_tokens": statistics.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": len(completion.token_ids),
    }


def _stop_json(answer: Answer) -> dict[str, str | None]:
    """Why an answer ended, and which stop text ended it."""
    stop = _stopped_by(answer.ended) if answer.finish == "stop" else None
    return {"stop_reason": "stop_sequence" if stop else _STOPS[answer.finish or "stop"], "stop_sequence": stop}


def _stopped_by(completion: Completion) -> str | None:
    """The stop text before which an answer ended."""
    written = b"".join(map(completion.token_bytes, completion.token_ids)).decode("utf-8", errors="replace")
    rest = written[len(completion.text) :]
    return next((stop for stop in completion.request.stops if stop and rest.startswith(stop)), None)

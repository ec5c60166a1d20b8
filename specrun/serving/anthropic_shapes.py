"""Answers in Anthropic's shape: a message of blocks, and the events of its stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from specrun.engine.completion import Completion
from specrun.engine.statistics import Statistics
from specrun.serving.answer_reader import FinishName
from specrun.serving.api_error import ApiError
from specrun.serving.event_stream import frame
from specrun.serving.reading.deltas import Delta
from specrun.serving.reading.json_call import whole_characters
from specrun.serving.usage import cached_tokens

_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
}
_STOPS: dict[FinishName, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def error_json(error: ApiError) -> dict[str, Any]:
    """The error as Anthropic's clients read it."""
    kind = _ERRORS.get(error.status, "invalid_request_error")
    # Agents look for these words, and shorten their conversation.
    begin = "prompt is too long: " if error.code == "context_length_exceeded" else ""
    return {"type": "error", "error": {"type": kind, "message": begin + error.message}}


def usage_json(statistics: Statistics, n_written: int) -> dict[str, int]:
    """Numbers of tokens; those of the prompt that were in the cache are told apart."""
    cached = cached_tokens(statistics)
    return {
        "input_tokens": statistics.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": n_written,
    }


def stop_json(name: FinishName, completion: Completion) -> dict[str, str | None]:
    """Why an answer ended, and which stop text ended it."""
    stop = stopped_by(completion) if name == "stop" else None
    return {"stop_reason": "stop_sequence" if stop else _STOPS[name], "stop_sequence": stop}


def stopped_by(completion: Completion) -> str | None:
    """The stop text that an answer ended before; None if it ended otherwise."""
    if completion.finish_reason != "stop":
        return None
    written = b"".join(map(completion.token_bytes, completion.token_ids)).decode("utf-8", errors="replace")
    rest = written[len(completion.text) :]
    return next((stop for stop in completion.request.stops if stop and rest.startswith(stop)), None)


class Blocks:
    """Puts what readers tell into blocks, one after the other."""

    def __init__(self) -> None:
        self._index = -1
        self._kind: tuple[str, int] | None = None  # of the open block; a number for each call

    def events(self, deltas: Iterable[Delta]) -> Iterator[bytes]:
        """The events that tell of additions."""
        for delta in deltas:
            kind, begin, addition = _block(delta)
            if kind != self._kind:
                yield from self.end()
                self._index += 1
                self._kind = kind
                yield _event("content_block_start", index=self._index, content_block=begin)
            if addition:
                yield _event("content_block_delta", index=self._index, delta=addition)

    def end(self) -> Iterator[bytes]:
        """The event that ends the open block, if there is one."""
        if self._kind is not None:
            yield _event("content_block_stop", index=self._index)
        self._kind = None


def content_json(deltas: Iterable[Delta]) -> list[dict[str, Any]]:
    """The blocks of a whole answer."""
    blocks: list[dict[str, Any]] = []
    last: tuple[str, int] | None = None
    for delta in deltas:
        kind, begin, addition = _block(delta)
        if kind != last:
            blocks.append(begin | ({"input": ""} if delta.call else {}))
            last = kind
        if delta.call:
            blocks[-1]["input"] += delta.call.arguments
        elif addition:
            blocks[-1][kind[0]] += addition[kind[0]]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = _object(block["input"])
    return blocks


def _block(delta: Delta) -> tuple[tuple[str, int], dict[str, Any], dict[str, Any] | None]:
    """The kind of block that an addition belongs to, how such a block begins, and the addition; None for nothing."""
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
    """A call's arguments; none for half an object, of an answer that was cut off."""
    try:
        value = json.loads(whole_characters(json.dumps(json.loads(text), ensure_ascii=False)))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _event(kind: str, **fields: Any) -> bytes:
    return frame({"type": kind, **fields}, event=kind)


def message_start(message: dict[str, Any]) -> bytes:
    """The first event of a stream."""
    return _event("message_start", message=message)


def message_end(stop: dict[str, str | None], usage: dict[str, int]) -> Iterator[bytes]:
    """The last two events of a stream."""
    yield _event("message_delta", delta=stop, usage=usage)
    yield _event("message_stop")


PING = _event("ping")

"""Answers in the shape of /v1/responses: a response with items, and the events by which it is streamed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specrun.reading.deltas import Delta
from specrun.serving.answers import Answer, Shape, Wanted, frame
from specrun.serving.api_error import ApiError
from specrun.serving.openai_endpoints import timings_json
from specrun.serving.service import Json, KeptResponses, LoadedService, cached_tokens

# The types of items: how their ids begin, and what events call their texts.
_TYPES = {
    "message": ("msg", "output_text"),
    "reasoning": ("rs", "reasoning_text"),
    "function_call": ("fc", "function_call_arguments"),
}


@dataclass(frozen=True)
class ResponsesWanted(Wanted):
    """response: the object as it is before anything is written. conversation: the items that are answered.

    namespaces: namespace and name of tools by the names that the model knows. kept: where the response is kept; None if
        nowhere.
    """

    response: Json
    conversation: list[Json]
    namespaces: Mapping[str, tuple[str, str]]
    kept: KeptResponses | None


class ResponsesShape(Shape):
    """The shape of /v1/responses."""

    def __init__(self, loaded: LoadedService, asked: ResponsesWanted) -> None:
        self._response = {**asked.response, "model": loaded.name, "output": []}
        self._asked = asked
        self._n_events = 0
        self._item: Json = {}  # the item that is being written, if any, and which call it is
        self._call: int | None = None
        self._texts: list[str] = []  # that were added to it

    def whole(self, answers: Sequence[Answer]) -> Json:
        for _ in self.added(answers[0]):
            pass
        return self._response

    def begin(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self._response)
        yield self._event("response.in_progress", response=self._response)

    def added(self, addition: Answer) -> Iterator[bytes]:
        for delta in addition.deltas:
            yield from self._added(delta)
        if addition.completion:
            status = "incomplete" if addition.finish == "length" else "completed"
            yield from self._end(status)
            if status == "completed" and all(item["type"] == "reasoning" for item in self._response["output"]):
                # Agents ask again and again where there is no message.
                yield from self._begin(Delta())
                yield from self._end(status)
            reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
            self._response |= {
                "status": status,
                "completed_at": int(time.time()),
                "incomplete_details": reason,
                "usage": _usage_json(addition),
                "timings": timings_json(addition.ended),
            }
            if self._asked.kept:
                self._asked.kept.keep(self._response, [*self._asked.conversation, *self._response["output"]])
            yield self._event(f"response.{status}", response=self._response)

    def failure(self, error: ApiError) -> bytes:
        told = {"code": error.code or "server_error", "message": error.message}
        return self._event("response.failed", response={**self._response, "status": "failed", "error": told})

    def _added(self, delta: Delta) -> Iterator[bytes]:
        kind, text = _kind(delta)
        if (kind, delta.call.index if delta.call else None) != (self._item.get("type"), self._call):
            yield from self._end("completed")
            yield from self._begin(delta)
        if text:
            self._texts.append(text)
            yield self._of_text("delta", delta=text)

    def _begin(self, delta: Delta) -> Iterator[bytes]:
        (kind, _), call = _kind(delta), delta.call
        self._call = call.index if call else None
        self._item = {"id": f"{_TYPES[kind][0]}_{secrets.token_hex(24)}", "type": kind, "status": "in_progress"}
        if call:
            space, name = self._asked.namespaces.get(call.name or "", ("", call.name))
            self._item |= {"call_id": call.id, "name": name, "arguments": ""} | ({"namespace": space} if space else {})
        else:
            own: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
            self._item |= {**own, "content": []}
        yield self._of_item("response.output_item.added", item=self._item)
        if not call:
            yield self._of_item("response.content_part.added", **self._place(), part=self._part(""))

    def _end(self, status: str) -> Iterator[bytes]:
        """End the item that is being written, if there is one."""
        item, text = self._item, "".join(self._texts)
        if not item:
            return
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._of_text("done", name=item["name"], arguments=text)
        else:
            yield self._of_text("done", text=text)
            yield self._of_item("response.content_part.done", **self._place(), part=self._part(text))
            item["content"] = [self._part(text)]
        item["status"] = status
        yield self._of_item("response.output_item.done", item=item)
        self._response["output"].append(item)
        self._item, self._texts = {}, []

    def _part(self, text: str) -> Json:
        """The only part of the item that is being written."""
        further: Json = {"annotations": [], "logprobs": []} if self._item["type"] == "message" else {}
        return {"type": _TYPES[self._item["type"]][1], "text": text, **further}

    def _place(self) -> Json:
        return {"item_id": self._item["id"], **({} if self._item["type"] == "function_call" else {"content_index": 0})}

    def _of_text(self, what: str, **fields: Any) -> bytes:
        further: Json = {"logprobs": []} if self._item["type"] == "message" else {}
        return self._of_item(f"response.{_TYPES[self._item['type']][1]}.{what}", **self._place(), **fields, **further)

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        """An event of the item that is being written."""
        return self._event(kind, output_index=len(self._response["output"]), **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._n_events += 1
        return frame({"type": kind, "sequence_number": self._n_events - 1, **fields}, event=kind)


def _kind(delta: Delta) -> tuple[str, str]:
    """The type of the item that an addition belongs to, and its text."""
    if delta.call:
        return "function_call", delta.call.arguments
    return ("reasoning", delta.reasoning) if delta.reasoning else ("message", delta.content)


def _usage_json(answer: Answer) -> Json:
    statistics, n_written = answer.ended.statistics, len(answer.ended.token_ids)
    n_prompt = statistics.prompt_tokens
    return {
        "input_tokens": n_prompt,
        "input_tokens_details": {"cached_tokens": cached_tokens(statistics)},
        "output_tokens": n_written,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": n_prompt + n_written,
    }

"""Answers in the shape of /v1/responses: a response with items, and the events by which it is streamed."""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from specrun.reading.deltas import Delta
from specrun.sampling.sampler import TokenLogprob
from specrun.serving.answers import Answer, Shape, Wanted, frame
from specrun.serving.api_error import ApiError
from specrun.serving.kept_responses import KeptResponses
from specrun.serving.openai_endpoints import logprobs_json, timings_json
from specrun.serving.service import LoadedService, cached_tokens

Json = dict[str, Any]

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}  # the types of their only parts


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
        self._token_bytes = loaded.model.llama_model.token_bytes
        self._response = {**asked.response, "model": loaded.name, "output": []}
        self._asked = asked
        self._n_events = 0
        self._item: Json | None = None  # the item that is being written, and which call it is
        self._call = -1
        self._texts: list[str] = []  # that were added to it
        self._logprobs: list[TokenLogprob] = []  # of the message; and those whose text was not told yet
        self._unsent: list[TokenLogprob] = []

    def whole(self, answers: Sequence[Answer]) -> Json:
        for _ in self.added(answers[0]):
            pass
        return self._response

    def begin(self) -> Iterator[bytes]:
        yield self._event("response.created", response=self._response)
        yield self._event("response.in_progress", response=self._response)

    def added(self, addition: Answer) -> Iterator[bytes]:
        self._unsent += addition.logprobs
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
        is_same = self._item is not None and self._item["type"] == kind
        if not is_same or (delta.call and delta.call.index != self._call):
            yield from self._end("completed")
            yield from self._begin(delta)
        if text:
            self._texts.append(text)
            logprobs, told = self._logprobs_of(text), {}
            if kind == "message":
                self._logprobs += logprobs
                told = {"logprobs": logprobs_json(logprobs, self._token_bytes)}
            yield self._of_item(_delta_event(kind), delta=text, **told)

    def _begin(self, delta: Delta) -> Iterator[bytes]:
        kind, call = _kind(delta)[0], delta.call
        self._logprobs = []
        item = {"id": f"{_PREFIXES[kind]}_{secrets.token_hex(24)}", "type": kind, "status": "in_progress"}
        if call:
            self._call = call.index
            space, name = self._asked.namespaces.get(call.name or "", ("", call.name))
            self._item = {**item, "call_id": call.id, "name": name, "arguments": ""}
            if space:
                self._item["namespace"] = space
        else:
            self._item = {**item, **({"role": "assistant"} if kind == "message" else {"summary": []}), "content": []}
        yield self._event("response.output_item.added", output_index=self._index, item=self._item)
        if not call:
            yield self._of_item("response.content_part.added", part=self._part(""))

    def _end(self, status: str) -> Iterator[bytes]:
        """End the item that is being written, if there is one."""
        item, text = self._item, "".join(self._texts)
        if item is None:
            return
        done = _delta_event(item["type"]).replace(".delta", ".done")
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._of_item(done, name=item["name"], arguments=text)
        else:
            part = self._part(text)
            told = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield self._of_item(done, text=text, **told)
            yield self._of_item("response.content_part.done", part=part)
            item["content"] = [part]
        item["status"] = status
        yield self._event("response.output_item.done", output_index=self._index, item=item)
        self._response["output"].append(item)
        self._item, self._texts = None, []

    @property
    def _index(self) -> int:
        return len(self._response["output"])

    def _part(self, text: str) -> Json:
        assert self._item
        if self._item["type"] == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = logprobs_json(self._logprobs if text else (), self._token_bytes)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _logprobs_of(self, text: str) -> list[TokenLogprob]:
        """Those of the tokens that `text` was written with. Tokens before them are of marks, which are not told."""
        parts, wanted = [self._token_bytes(one.token) for one in self._unsent], text.encode()
        start = b"".join(parts).find(wanted)
        ends = list(accumulate(map(len, parts)))
        first, behind = bisect_right(ends, start), bisect_left(ends, start + len(wanted)) + 1
        if start < 0:  # it is told otherwise than it was written
            first, behind = 0, len(parts)
        found, self._unsent = self._unsent[first:behind], self._unsent[behind:]
        return found

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        """An event of the item that is being written, or of its only part."""
        assert self._item
        at = {"item_id": self._item["id"], "output_index": self._index}
        if self._item["type"] != "function_call":
            at["content_index"] = 0
        return self._event(kind, **at, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._n_events += 1
        return frame({"type": kind, "sequence_number": self._n_events - 1, **fields}, event=kind)


def _kind(delta: Delta) -> tuple[str, str]:
    """The type of the item that an addition belongs to, and its text."""
    if delta.call:
        return "function_call", delta.call.arguments
    return ("reasoning", delta.reasoning) if delta.reasoning else ("message", delta.content)


def _delta_event(kind: str) -> str:
    return f"response.{_TEXTS.get(kind, 'function_call_arguments')}.delta"


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

"""POST /v1/chat/completions and /v1/completions, and the shapes of OpenAI's answers, with that of /v1/responses."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from specrun import __version__
from specrun.decoding.completion import Completion
from specrun.reading.deltas import CallDelta, Delta
from specrun.sampling.sampler import TokenLogprob
from specrun.serving.answers import (
    Answer,
    Asked,
    Shape,
    TokenBytes,
    answering,
    frame,
    logprobs_json,
    timings_json,
    token_text,
)
from specrun.serving.refusals import ApiError, refused
from specrun.serving.request_fields import MOST_LOGPROBS, Fields, Integer, Json, Sending, parsed
from specrun.serving.service import KeptResponses, LoadedService, Service, cached_tokens
from specrun.serving.wanted import MOST_PROMPTS, TextPrompt, Wanted, read_chat, read_text, text_prompts


class _CompletionFields(Fields):
    prompt: TextPrompt
    logprobs: Annotated[Integer, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool = False
    suffix: str = ""
    best_of: Annotated[Integer, Field(ge=1, le=MOST_PROMPTS)] = 1


@answering
def chat_completions(service: Service, body: Json) -> Asked:
    """The next message of a conversation. Raises SpecrunError and ApiError, as all endpoints do."""
    wanted = read_chat(service, body)
    return wanted, _ChatShape(service.loaded, wanted)


@answering
def completions(service: Service, body: Json) -> Asked:
    """Texts that continue prompts."""
    sending, given = parsed(Sending, body), parsed(_CompletionFields, body)
    if given.echo:
        raise refused("echo", "is not possible; put the prompt before the answer yourself")
    if given.best_of > sending.n:
        raise refused("best_of", "may not be more than n: all answers that are written are sent")
    prompts = service.loaded.prompts
    if not given.suffix:
        made = text_prompts(prompts, given.prompt, not sending.cache_prompt)
    elif isinstance(given.prompt, str):
        made = [prompts.of_gap(given.prompt, given.suffix)]
    else:
        raise refused("suffix", "needs a prompt that is a string")
    wanted = read_text(service, body, made, given.logprobs)
    return wanted, _CompletionShape(service.loaded, wanted)


class _OpenAiShape(Shape):
    """What both shapes share."""

    _id, _whole, _chunk = "", "", ""  # the beginning of the id, and what the objects are called

    def __init__(self, loaded: LoadedService, wanted: Wanted) -> None:
        self._sending = wanted.sending
        self._token_bytes = loaded.model.llama_model.token_bytes
        self._head = {
            "id": f"{self._id}-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": loaded.name,
            "system_fingerprint": f"specrun-{__version__}",
        }

    def whole(self, answers: Sequence[Answer]) -> Json:
        choices = [self._choice(answer) for answer in answers]
        numbers = {"usage": _usage(answers, self._sending.n), **self._numbers(answers[-1].ended)}
        return {"object": self._whole, **self._head, "choices": choices, **numbers}

    def end(self, answers: Sequence[Answer]) -> Iterator[bytes]:
        """The numbers of tokens, if they are asked for, and the mark of the end."""
        if self._sending.stream_options.include_usage:
            yield self._frame([], {"usage": _usage(answers, self._sending.n)})
        yield b"data: [DONE]\n\n"

    def _choice(self, answer: Answer) -> Json:
        raise NotImplementedError

    def _numbers(self, completion: Completion) -> Json:
        tree = {"last_tree": _last_tree(completion)} if self._sending.last_tree else {}
        return {"timings": timings_json(completion), **tree}

    def _frame(self, choices: list[Json], further: Json | None = None) -> bytes:
        return frame({"object": self._chunk, **self._head, "choices": choices, **(further or {})})


class _CompletionShape(_OpenAiShape):  # /v1/completions
    _id, _whole, _chunk = "cmpl", "text_completion", "text_completion"
    _begin = 0  # of the next addition in its answer, in characters

    def added(self, addition: Answer) -> Iterator[bytes]:
        choice = self._choice(addition, self._begin)
        yield self._frame([choice], self._numbers(addition.completion) if addition.completion else None)
        self._begin = 0 if addition.completion else self._begin + len(choice["text"])

    def _choice(self, answer: Answer, begin: int = 0) -> Json:
        text = answer.content
        told = _completion_logprobs(answer.logprobs, begin, self._token_bytes) if answer.logprobs else None
        return {"text": text, "index": answer.index, "logprobs": told, "finish_reason": answer.finish}


class _ChatShape(_OpenAiShape):  # /v1/chat/completions
    _id, _whole, _chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"
    _n_begun = 0

    def added(self, addition: Answer) -> Iterator[bytes]:
        """A chunk for each part, besides those with which an answer begins and ends."""
        index, logprobs = addition.index, addition.logprobs
        if index == self._n_begun:
            yield self._frame([self._told(index, "delta", {"role": "assistant", "content": ""})])
            self._n_begun += 1
        for delta in addition.deltas or ([Delta()] if logprobs else []):
            yield self._frame([self._told(index, "delta", _delta_json(delta), logprobs)])
            logprobs = ()
        if addition.completion:
            ending = self._told(index, "delta", {}, finish=addition.finish)
            yield self._frame([ending], self._numbers(addition.completion))

    def _choice(self, answer: Answer) -> Json:
        return self._told(answer.index, "message", _message(answer), answer.logprobs, answer.finish)

    def _told(
        self, index: int, name: str, value: Json, logprobs: Sequence[TokenLogprob] = (), finish: str | None = None
    ) -> Json:
        content = logprobs_json(logprobs, self._token_bytes)
        told = {"content": content, "refusal": None} if logprobs else None
        return {"index": index, name: value, "logprobs": told, "finish_reason": finish}


def _usage(answers: Sequence[Answer], n: int) -> Json:
    """Numbers of tokens. A prompt, which has `n` answers, is counted once."""
    first = [answer.ended.statistics for answer in answers[::n]]  # of each prompt
    prompt = sum(s.prompt_tokens for s in first)
    written = sum(len(answer.ended.token_ids) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(map(cached_tokens, first))},
        "completion_tokens_details": {"reasoning_tokens": sum(answer.reasoning_tokens for answer in answers)},
    }


def _message(answer: Answer) -> Json:
    calls = [_begun(call) for call in answer.calls]
    message: Json = {"role": "assistant", "content": answer.content or (None if calls else "")}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _delta_json(delta: Delta) -> Json:
    if delta.call:
        call = delta.call
        more = {"function": {"arguments": call.arguments}} if call.name is None else _begun(call)
        return {"tool_calls": [{"index": call.index, **more}]}
    return {"reasoning_content": delta.reasoning} if delta.reasoning else {"content": delta.content}


def _begun(call: CallDelta) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _completion_logprobs(logprobs: Sequence[TokenLogprob], begin: int, token_bytes: TokenBytes) -> Json:
    """Log-probabilities as four lists. begin: characters of the text before the first token."""
    tokens = [token_text(token_bytes(written.token)) for written in logprobs]
    return {
        "tokens": tokens,
        "token_logprobs": [written.logprob for written in logprobs],
        "top_logprobs": [
            {token_text(token_bytes(token)): value for token, value in written.top} for written in logprobs
        ],
        "text_offset": [begin + sum(map(len, tokens[:i])) for i in range(len(tokens))],
    }


def _last_tree(completion: Completion) -> Json | None:
    """The tree of the last pass that had a tree: its tokens, their parents (-1 for the root), the accepted path."""
    drafted = completion.last_drafted
    if drafted is None:
        return None
    tokens = [token_text(completion.token_bytes(int(token))) for token in drafted.tree.tokens]
    path = [int(node) for node in drafted.accepted.path]
    return {"tokens": tokens, "parents": drafted.tree.parents.tolist(), "path": path}


# The items of /v1/responses, by what is added to them: their types, how their ids begin, what events call their texts.
_ITEMS = {
    "content": ("message", "msg", "output_text"),
    "reasoning": ("reasoning", "rs", "reasoning_text"),
    "call": ("function_call", "fc", "function_call_arguments"),
}


class ResponsesShape(Shape):
    """The shape of /v1/responses: a response with items, and the events by which it is streamed.

    response: the object before anything is written. conversation: the items that are answered. namespaces: namespace
    and name of tools by the names that the model knows. kept: where the response is kept; None if nowhere.
    """

    def __init__(
        self,
        response: Json,
        conversation: list[Json],
        namespaces: Mapping[str, tuple[str, str]],
        kept: KeptResponses | None,
    ) -> None:
        self._response = response
        self._conversation = conversation
        self._namespaces = namespaces
        self._kept = kept
        self._n_events = 0
        self._item: Json = {}  # the item that is being written, if any
        self._part: tuple[str, int] | None = None  # which part of the answer it is, as `Delta.part` has it
        self._text_name = ""  # what events call its text
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
            if delta.part != self._part:
                yield from self._end("completed")
                yield from self._begin(delta)
            if delta.text:
                self._texts.append(delta.text)
                yield self._of_text("delta", delta=delta.text)
        if addition.completion:
            status = "incomplete" if addition.finish == "length" else "completed"
            yield from self._end(status)
            if status == "completed" and all(item["type"] == "reasoning" for item in self._response["output"]):
                # Agents ask again and again where there is no message.
                yield from self._begin(Delta())
                yield from self._end(status)
            # What newer clients call prompts and completions.
            usage = {
                name.replace("prompt", "input").replace("completion", "output"): number
                for name, number in _usage([addition], 1).items()
            }
            self._response |= {
                "status": status,
                "completed_at": int(time.time()),
                "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
                "usage": usage,
                "timings": timings_json(addition.ended),
            }
            if self._kept:
                self._kept.keep(self._response, [*self._conversation, *self._response["output"]])
            yield self._event(f"response.{status}", response=self._response)

    def failure(self, error: ApiError) -> bytes:
        told = {"code": error.code or "server_error", "message": error.message}
        return self._event("response.failed", response={**self._response, "status": "failed", "error": told})

    def _begin(self, delta: Delta) -> Iterator[bytes]:
        kind, prefix, self._text_name = _ITEMS[delta.part[0]]
        self._part = delta.part
        self._item = {"id": f"{prefix}_{secrets.token_hex(24)}", "type": kind, "status": "in_progress"}
        if call := delta.call:
            space, name = self._namespaces.get(call.name or "", ("", call.name))
            self._item |= {"call_id": call.id, "name": name, "arguments": ""} | ({"namespace": space} if space else {})
        else:
            own: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
            self._item |= {**own, "content": []}
        yield self._of_item("response.output_item.added", item=self._item)
        if not call:
            yield self._of_content("added", "")

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
            yield self._of_content("done", text)
            item["content"] = [self._content(text)]
        item["status"] = status
        yield self._of_item("response.output_item.done", item=item)
        self._response["output"].append(item)
        self._item, self._part, self._texts = {}, None, []

    def _content(self, text: str) -> Json:
        """The only part of a message or of reasoning."""
        further: Json = {"annotations": [], "logprobs": []} if self._item["type"] == "message" else {}
        return {"type": self._text_name, "text": text, **further}

    def _of_content(self, what: str, text: str) -> bytes:
        """An event of this part."""
        place = {"item_id": self._item["id"], "content_index": 0}
        return self._of_item(f"response.content_part.{what}", **place, part=self._content(text))

    def _of_text(self, what: str, **fields: Any) -> bytes:
        kind = self._item["type"]
        place = {"item_id": self._item["id"]} | ({} if kind == "function_call" else {"content_index": 0})
        further: Json = {"logprobs": []} if kind == "message" else {}
        return self._of_item(f"response.{self._text_name}.{what}", **place, **fields, **further)

    def _of_item(self, kind: str, **fields: Any) -> bytes:
        """An event of the item that is being written."""
        return self._event(kind, output_index=len(self._response["output"]), **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._n_events += 1
        return frame({"type": kind, "sequence_number": self._n_events - 1, **fields}, event=kind)

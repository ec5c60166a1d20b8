"""POST /v1/chat/completions and /v1/completions: the next message of a conversation, texts that continue prompts, and
the shapes of both answers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, InstanceOf

from specrun import __version__
from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.decoding.prompts import is_begun
from specrun.loading.model import Model
from specrun.reading.deltas import CallDelta, Delta
from specrun.reading.form import AnswerForm
from specrun.sampling.sampler import TokenLogprob
from specrun.serving.answers import Answer, Shape, Wanted, answering, frame
from specrun.serving.api_error import ApiError, refused
from specrun.serving.expected import Expected, read_expected
from specrun.serving.prompts import Prompt, Prompts, read_messages
from specrun.serving.request_fields import MOST_LOGPROBS, Fields, Integer, Sending, must, parsed, read_request
from specrun.serving.service import Json, LoadedService, Service, cached_tokens

MOST_PROMPTS = 64


class _ChatFields(Fields):
    logprobs: bool = False
    top_logprobs: Annotated[Integer, Field(ge=0, le=MOST_LOGPROBS)] = 0
    chat_template_kwargs: InstanceOf[dict[str, Any]] = Field({})
    reasoning_effort: str = ""


_TokenIds = Annotated[list[int], Field(fail_fast=True)]
TextPrompt = Annotated[
    str
    | Annotated[_TokenIds, Field(min_length=1)]
    | Annotated[list[str | _TokenIds], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)],
    must(f"be a string, a list of token ids, or a list of at most {MOST_PROMPTS} of them"),
]


class _CompletionFields(Fields):
    prompt: TextPrompt
    logprobs: Annotated[Integer, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool = False
    suffix: str = ""
    best_of: Annotated[Integer, Field(ge=1, le=MOST_PROMPTS)] = 1


def read_chat(service: Service, body: Mapping[str, Any]) -> Wanted:
    """What is asked with the conversation in a body. Raises SpecrunError and ApiError."""
    sending = parsed(Sending, body)
    prompts, model = service.loaded.prompts, service.loaded.model
    request, given = read_request(body, service.defaults, model.llama_model.n_vocab), parsed(_ChatFields, body)
    if given.logprobs:
        request = replace(request, logprobs=given.top_logprobs)
    elif given.top_logprobs:
        raise refused("top_logprobs", "needs logprobs to be true")
    form = prompts.format.form
    messages, expected = read_messages(body, form), read_expected(body, form)
    is_formed = expected.schema is not None or request.gbnf is not None or expected.prompt_end
    if is_formed and is_begun(messages) and messages[-1]["content"]:
        why = "end with a message of the assistant, which cannot be continued in a format or as a named call"
        raise refused("messages", f"{why}; leave out the one or the other")
    effort, thinks = given.reasoning_effort, given.reasoning_effort != "none"
    variables = ({"reasoning_effort": effort} if effort and thinks else {}) | given.chat_template_kwargs
    tools = expected.tools.declared if expected.tools else []
    prompt = prompts.of_messages(messages, tools, variables, thinks, expected.prompt_end, not sending.cache_prompt)
    shown = prompts.format.shown(expected.tools is not None)
    return _wanted(model, [prompt], expected, replace(request, shown=shown), sending)


def _read_completion(service: Service, body: Mapping[str, Any]) -> Wanted:
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
    wanted = read_text(service, body, made)
    return replace(wanted, request=replace(wanted.request, logprobs=given.logprobs))


def text_prompts(prompts: Prompts, given: Any, anew: bool) -> list[Prompt]:
    """What a `TextPrompt` stands for. anew: see `Prompts.of_text`. Raises ApiError."""
    several = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    return [prompts.of_text(p, anew) if isinstance(p, str) else prompts.of_tokens(p) for p in several]


def read_text(service: Service, body: Mapping[str, Any], prompts: Sequence[Prompt]) -> Wanted:
    """What is asked with texts that the model goes on with. Raises SpecrunError and ApiError."""
    model = service.loaded.model
    expected = read_expected({**body, "tools": None}, AnswerForm())  # it is told of no tools, and nothing is marked
    request = read_request(body, service.defaults, model.llama_model.n_vocab)
    return _wanted(model, prompts, expected, request, parsed(Sending, body))


def _wanted(model: Model, prompts: Sequence[Prompt], expected: Expected, request: Request, sending: Sending) -> Wanted:
    text = prompts[0].text or ""
    request = expected.constrained(request, text)
    if request.gbnf is not None and any(plan.method.samples for plan in model.plans.candidates):
        raise ApiError("the server's --method cannot follow a grammar, which this request needs; start it with another")
    return Wanted(prompts, request, expected.reader(text), sending)


TokenBytes = Callable[[int], bytes]


class OpenAiShape(Shape):
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


class CompletionShape(OpenAiShape):  # /v1/completions
    _id, _whole, _chunk = "cmpl", "text_completion", "text_completion"
    _begin = 0  # of the next addition in its answer, in characters

    def added(self, addition: Answer) -> Iterator[bytes]:
        choice = self._choice(addition, self._begin)
        yield self._frame([choice], self._numbers(addition.completion) if addition.completion else None)
        self._begin = 0 if addition.completion else self._begin + len(choice["text"])

    def _choice(self, answer: Answer, begin: int = 0) -> Json:
        text = "".join(delta.content for delta in answer.deltas)
        told = _completion_logprobs(answer.logprobs, begin, self._token_bytes) if answer.logprobs else None
        return {"text": text, "index": answer.index, "logprobs": told, "finish_reason": answer.finish}


class ChatShape(OpenAiShape):  # /v1/chat/completions
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
        return self._told(answer.index, "message", _message(answer.deltas), answer.logprobs, answer.finish)

    def _told(
        self, index: int, name: str, value: Json, logprobs: Sequence[TokenLogprob] = (), finish: str | None = None
    ) -> Json:
        content = logprobs_json(logprobs, self._token_bytes)
        told = {"content": content, "refusal": None} if logprobs else None
        return {"index": index, name: value, "logprobs": told, "finish_reason": finish}


def _usage(answers: Sequence[Answer], n: int) -> dict[str, Any]:
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


def timings_json(completion: Completion) -> dict[str, Any]:
    """What llama-server says of the time of an answer, and `tokens_per_pass`."""
    s = completion.statistics
    prompt_n = s.prompt_tokens - cached_tokens(s)
    prompt_ms, predicted_ms = 1e3 * s.prefill_seconds, 1e3 * s.seconds
    return {
        "cache_n": cached_tokens(s),
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": round(prompt_ms / max(prompt_n, 1), 3),
        "prompt_per_second": round(1e3 * prompt_n / prompt_ms, 3) if prompt_ms else 0.0,
        "predicted_n": s.completion_tokens,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": round(predicted_ms / max(s.completion_tokens, 1), 3),
        "predicted_per_second": round(s.tokens_per_second, 3),
        "draft_n": s.drafted,
        "draft_n_accepted": s.drafted_accepted,
        "tokens_per_pass": round(s.tokens_per_pass, 3),
    }


def _message(deltas: Iterable[Delta]) -> Json:
    content, reasoning, calls = "", "", list[Json]()
    for delta in deltas:
        content += delta.content
        reasoning += delta.reasoning
        if delta.call and delta.call.name is not None:
            calls.append(_begun(delta.call))
        elif delta.call:
            calls[-1]["function"]["arguments"] += delta.call.arguments
    message: Json = {"role": "assistant", "content": None if calls and not content else content}
    if reasoning:
        message["reasoning_content"] = reasoning
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


def logprobs_json(logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes) -> list[Json]:
    """For each token its own log-probability and those of the likeliest tokens. llama-server adds the ids."""

    def told(token: int, logprob: float) -> Json:
        data = token_bytes(token)
        return {"id": token, "token": _text(data), "bytes": list(data), "logprob": logprob}

    return [{**told(t.token, t.logprob), "top_logprobs": [told(*other) for other in t.top]} for t in logprobs]


def _completion_logprobs(logprobs: Sequence[TokenLogprob], begin: int, token_bytes: TokenBytes) -> Json:
    """Log-probabilities as four lists. begin: characters of the text before the first token."""
    tokens = [_text(token_bytes(written.token)) for written in logprobs]
    return {
        "tokens": tokens,
        "token_logprobs": [written.logprob for written in logprobs],
        "top_logprobs": [{_text(token_bytes(token)): value for token, value in written.top} for written in logprobs],
        "text_offset": [begin + sum(map(len, tokens[:i])) for i in range(len(tokens))],
    }


def _last_tree(completion: Completion) -> Json | None:
    """The tree of the last pass that had a tree: its tokens, their parents (-1 for the root), the accepted path."""
    drafted = completion.last_drafted
    if drafted is None:
        return None
    tokens = [_text(completion.token_bytes(int(token))) for token in drafted.tree.tokens]
    path = [int(node) for node in drafted.accepted.path]
    return {"tokens": tokens, "parents": drafted.tree.parents.tolist(), "path": path}


def _text(data: bytes) -> str:
    """The text of a token; U+FFFD for a part of a character."""
    return data.decode("utf-8", errors="replace")


chat_completions = answering(read_chat, ChatShape)
completions = answering(_read_completion, CompletionShape)

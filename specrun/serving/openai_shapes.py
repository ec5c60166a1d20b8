"""Answers in OpenAI's two shapes: messages of a conversation, and texts that continue prompts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from specrun import __version__
from specrun.engine.completion import Completion
from specrun.reading.deltas import CallDelta, Delta
from specrun.sampling.sampler import TokenLogprob
from specrun.serving.answers import Answer, Shape, frame
from specrun.serving.api_error import ApiError
from specrun.serving.endpoint import Wanted
from specrun.serving.service import LoadedService, cached_tokens

Json = dict[str, Any]
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

    def failure(self, error: ApiError) -> bytes:
        return frame(error.as_openai())

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

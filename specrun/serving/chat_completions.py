"""POST /v1/chat/completions: the next message of a conversation, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from specrun.engine.completion import Completion
from specrun.sampling.logprobs import TokenLogprob
from specrun.serving.answer_reader import AnswerReader, FinishName
from specrun.serving.api_error import ApiError
from specrun.serving.bodies import read_json
from specrun.serving.chat_fields import Sending, read_chat, read_sending
from specrun.serving.chat_job import begin
from specrun.serving.chat_shapes import delta_json, message_of
from specrun.serving.event_stream import DONE, KEEP_ALIVE, KEEP_ALIVE_S, frame, response_of
from specrun.serving.fields import Fields
from specrun.serving.job import Job
from specrun.serving.last_tree import last_tree
from specrun.serving.openai_shapes import TokenBytes, chat_logprobs, head
from specrun.serving.reading.deltas import Delta
from specrun.serving.service import Service
from specrun.serving.steps import steps
from specrun.serving.usage import timings, usage


class ChatCompletions:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, request: Request) -> Response:
        """Answer a request. Raises ApiError."""
        loaded = self._service.loaded
        model = loaded.model.llama_model
        fields = Fields(await read_json(request))
        sending = read_sending(fields)
        # In a thread, because schemas may be large.
        chat = await run_in_threadpool(read_chat, fields, self._service.defaults, model.n_vocab, loaded.prompts.form)
        job, new_reader = await begin(self._service, chat, sending.n, sending.anew)
        answers = _Answers(sending, job, new_reader, loaded.name, model.token_bytes)
        return await response_of(request, job, answers, sending.stream)


class _Answers:
    """The answers to one request, in one of the two shapes."""

    def __init__(
        self,
        sending: Sending,
        job: Job,
        new_reader: Callable[[], AnswerReader],
        model_name: str,
        token_bytes: TokenBytes,
    ) -> None:
        self._sending = sending
        self._job = job
        self._new_reader = new_reader
        self._token_bytes = token_bytes
        self._head = head("chatcmpl", model_name)

    async def whole(self) -> dict[str, Any]:
        """All answers as one object."""
        deltas: list[Delta] = []
        logprobs: list[TokenLogprob] = []
        choices: list[dict[str, Any]] = []
        completions: list[Completion] = []
        async for step in steps(self._job, self._new_reader):
            assert step
            deltas += step.deltas
            logprobs += step.logprobs
            if step.ending:
                message = {"message": message_of(deltas)}
                choices.append(self._choice(step.index, message, logprobs, step.ending.name))
                completions.append(step.ending.completion)
                deltas, logprobs = [], []
        return {
            "object": "chat.completion",
            **self._head,
            "choices": choices,
            "usage": usage(self._job, completions),
            "timings": timings(completions[-1]),
            **self._tree(completions[-1]),
        }

    async def frames(self) -> AsyncIterator[bytes]:
        """The answers as server-sent events."""
        completions: list[Completion] = []
        n_begun = 0
        try:
            async for step in steps(self._job, self._new_reader, KEEP_ALIVE_S):
                if step is None:
                    yield KEEP_ALIVE
                    continue
                if step.index == n_begun:
                    yield self._chunk([self._choice(step.index, {"delta": {"role": "assistant", "content": ""}})])
                    n_begun += 1
                logprobs = step.logprobs
                for delta in step.deltas or ([Delta()] if logprobs else []):
                    yield self._chunk([self._choice(step.index, {"delta": delta_json(delta)}, logprobs)])
                    logprobs = ()
                if step.ending:
                    completions.append(step.ending.completion)
                    yield self._chunk(
                        [self._choice(step.index, {"delta": {}}, finish=step.ending.name)],
                        {"timings": timings(step.ending.completion), **self._tree(step.ending.completion)},
                    )
        except ApiError as error:
            yield frame(error.as_json())
            return
        if self._sending.include_usage:
            yield self._chunk([], {"usage": usage(self._job, completions)})
        yield DONE

    def _chunk(self, choices: list[dict[str, Any]], further: dict[str, Any] | None = None) -> bytes:
        return frame({"object": "chat.completion.chunk", **self._head, "choices": choices, **(further or {})})

    def _tree(self, completion: Completion) -> dict[str, Any]:
        return {"last_tree": last_tree(completion)} if self._sending.last_tree else {}

    def _choice(
        self,
        index: int,
        what: dict[str, Any],
        logprobs: Sequence[TokenLogprob] = (),
        finish: FinishName | None = None,
    ) -> dict[str, Any]:
        told = chat_logprobs(logprobs, self._token_bytes) if logprobs else None
        return {"index": index, **what, "logprobs": told, "finish_reason": finish}

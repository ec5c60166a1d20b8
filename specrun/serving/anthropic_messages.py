"""POST /v1/messages and /v1/messages/count_tokens: the next message of a conversation, in Anthropic's shape."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.serving import anthropic_shapes as shapes
from specrun.serving.answer_reader import AnswerReader
from specrun.serving.anthropic_fields import openai_body
from specrun.serving.api_error import ApiError
from specrun.serving.bodies import read_json
from specrun.serving.chat_fields import read_chat
from specrun.serving.chat_job import Chat, begin, chat_prompt
from specrun.serving.event_stream import KEEP_ALIVE_S, frame, response_of
from specrun.serving.fields import Fields
from specrun.serving.job import Job
from specrun.serving.reading.deltas import Delta
from specrun.serving.service import Service
from specrun.serving.steps import steps


class AnthropicMessages:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, request: Request) -> Response:
        """Answer a request. Raises ApiError."""
        body = await read_json(request)
        is_streamed = bool(Fields(body).flag("stream"))
        chat = await run_in_threadpool(self._read, body)
        job, new_reader = await begin(self._service, chat)
        answer = _Answer(job, new_reader, self._service.loaded.name)
        return await response_of(request, job, answer, is_streamed)

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens the prompt of a request has. Raises ApiError."""
        chat = await run_in_threadpool(self._read, await read_json(request), False)
        prompt = await chat_prompt(chat, self._service.loaded.prompts)
        return JSONResponse({"input_tokens": len(prompt.tokens)})

    def _read(self, body: dict[str, Any], needs_length: bool = True) -> Chat:
        loaded = self._service.loaded
        fields = Fields(openai_body(body, needs_length))
        return read_chat(fields, self._service.defaults, loaded.model.llama_model.n_vocab, loaded.prompts.form)


class _Answer:
    """The answer to one request, in one of the two shapes."""

    def __init__(self, job: Job, new_reader: Callable[[], AnswerReader], model_name: str) -> None:
        self._job = job
        self._new_reader = new_reader
        self._head = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model_name,
        }

    async def whole(self) -> dict[str, Any]:
        """The message as one object."""
        deltas: list[Delta] = []
        async for step in steps(self._job, self._new_reader):
            assert step
            deltas += step.deltas
            if step.ending:
                completion = step.ending.completion
                return {
                    **self._head,
                    "content": shapes.content_json(deltas),
                    **shapes.stop_json(step.ending.name, completion),
                    "usage": shapes.usage_json(completion.statistics, len(completion.token_ids)),
                }
        raise AssertionError("a job tells how its answer ended")

    async def frames(self) -> AsyncIterator[bytes]:
        """The message as server-sent events."""
        n_prompt = len(self._job.asked[0].prompt.tokens)
        usage = {"input_tokens": n_prompt, "output_tokens": 0}
        begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield shapes.message_start({**self._head, **begun})
        yield shapes.PING
        blocks = shapes.Blocks()
        try:
            async for step in steps(self._job, self._new_reader, KEEP_ALIVE_S):
                if step is None:
                    yield shapes.PING
                    continue
                for data in blocks.events(step.deltas):
                    yield data
                if step.ending:
                    completion = step.ending.completion
                    for data in blocks.end():
                        yield data
                    stop = shapes.stop_json(step.ending.name, completion)
                    numbers = shapes.usage_json(completion.statistics, len(completion.token_ids))
                    for data in shapes.message_end(stop, numbers):
                        yield data
        except ApiError as error:
            yield frame(shapes.error_json(error), event="error")

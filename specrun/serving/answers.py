"""The way from a request to its answers: endpoints at which texts are written, sent whole or while they are written."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, TypeVar

from anyio import to_thread
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specrun.decoding.completion import Completion
from specrun.errors import SpecrunError
from specrun.reading.deltas import CallDelta, Delta, whole_parts
from specrun.sampling.sampler import TokenLogprob
from specrun.serving.refusals import ApiError, of_model
from specrun.serving.request_fields import Json, read_json
from specrun.serving.service import Job, Piece, Service, cached_tokens, stopping
from specrun.serving.wanted import NewReader, Wanted

KEEP_ALIVE_S = 10.0  # proxies and clients give up on connections that are silent for a minute or so
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # nginx would hold a stream back


@dataclass
class Answer:
    """An answer of a job, or what was added to it.

    deltas: its parts. logprobs: those of the tokens of its text, where they are asked for.
    finish, completion: OpenAI's name for why it ended, and its counts and times; None while it is being written.
    reasoning_tokens: how many of its tokens are reasoning, once it has ended.
    """

    index: int
    deltas: list[Delta] = field(default_factory=list)
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Literal["stop", "length", "tool_calls"] | None = None
    completion: Completion | None = None
    reasoning_tokens: int = 0

    @property
    def content(self) -> str:
        """Its text, without reasoning and calls."""
        return "".join(delta.content for delta in self.deltas)

    @property
    def reasoning(self) -> str:
        return "".join(delta.reasoning for delta in self.deltas)

    @property
    def calls(self) -> list[CallDelta]:
        """Its calls of tools, each of them whole."""
        return [delta.call for delta in whole_parts(self.deltas) if delta.call]

    @property
    def is_interrupted(self) -> bool:
        """Whether the server stops, or nobody waits for the answer any more."""
        return self.completion is not None and self.completion.finish_reason == "interrupted"

    @property
    def ended(self) -> Completion:
        """The completion of an answer that is whole."""
        assert self.completion
        return self.completion

    @property
    def stopped_by(self) -> str | None:
        """The stop text that ended an answer that is whole; None if none did."""
        if self.finish != "stop":
            return None
        done = self.ended
        written = b"".join(map(done.token_bytes, done.token_ids)).decode("utf-8", errors="replace")
        rest = written[len(done.text) :]
        return next((text for text in done.request.stops if text and rest.startswith(text)), None)


class Shape:
    """How an endpoint sends the answers to one request. The methods that yield give what is streamed."""

    media_type = "text/event-stream"
    keep_alive = b": keep-alive\n\n"  # a comment, which clients skip

    def whole(self, answers: Sequence[Answer]) -> Any:
        """All answers as JSON."""
        raise NotImplementedError

    def begin(self) -> Iterable[bytes]:
        """What comes before anything is written."""
        return ()

    def added(self, addition: Answer) -> Iterator[bytes]:
        """An addition to an answer. The first answer is complete before the second begins."""
        raise NotImplementedError

    def end(self, _answers: Sequence[Answer]) -> Iterable[bytes]:
        """What comes after the last answer. Of each there is what was added last."""
        return ()

    def failure(self, error: ApiError) -> bytes:
        """What ended the answers early."""
        return frame(error.as_openai())


def frame(value: Json, event: str | None = None) -> bytes:
    """A server-sent event. event: its name, for the shapes that name them."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


async def _whole(job: Job, new_reader: NewReader, shape: Shape) -> Response:
    answers = [Answer(i) for i in range(len(job.asked))]
    async for addition in _additions(job, new_reader, None):
        assert addition
        if addition.is_interrupted:  # a part that is sent as the whole would pass for an answer that is long
            raise stopping()
        answer = answers[addition.index]
        deltas, logprobs = answer.deltas + addition.deltas, answer.logprobs + addition.logprobs
        answers[addition.index] = replace(addition, deltas=deltas, logprobs=logprobs)
    return JSONResponse(shape.whole(answers))


async def _events(job: Job, new_reader: NewReader, shape: Shape) -> AsyncIterator[bytes]:
    """What is sent. Raises ApiError for what goes wrong before anything is."""
    ended: list[Answer] = []
    has_begun = False
    try:
        async for addition in _additions(job, new_reader, KEEP_ALIVE_S):
            if not has_begun:
                if addition and addition.is_interrupted and not addition.deltas:
                    raise stopping()
                for data in shape.begin():
                    yield data
                has_begun = True
            if addition is None:
                yield shape.keep_alive
                continue
            for data in shape.added(addition):
                yield data
            if addition.completion:
                ended.append(addition)
    except ApiError as error:
        if not has_begun:
            raise
        yield shape.failure(error)
        return
    for data in shape.end(ended):
        yield data


async def _additions(job: Job, new_reader: NewReader, keep_alive_s: float | None) -> AsyncIterator[Answer | None]:
    """Everything that is written; None after each `keep_alive_s` seconds without anything new. Raises ApiError."""
    whole, reader = Answer(0), new_reader()
    try:
        async for event in job.events(keep_alive_s):
            if event is None:
                yield None
                continue
            if isinstance(event, Piece):
                addition = Answer(whole.index, reader.push(event.text), event.logprobs)
            else:
                is_cut = event.finish_reason != "stop"  # an interrupted stream is cut short, as a long answer is
                addition = Answer(whole.index, reader.finish(is_cut), completion=event)
            whole.deltas += addition.deltas
            if isinstance(event, Completion):
                addition.finish = "length" if is_cut else "tool_calls" if whole.calls else "stop"
                addition.reasoning_tokens = _tokens_of(event, whole.reasoning)
                whole, reader = Answer(whole.index + 1), new_reader()
            yield addition
    except SpecrunError as error:
        raise of_model(error) from error


def _tokens_of(completion: Completion, reasoning: str) -> int:
    """How many tokens an answer has to the end of its reasoning, what marks its beginning included."""
    pieces, data = [completion.token_bytes(token) for token in completion.token_ids], reasoning.encode()
    end = max(b"".join(pieces).find(data), 0) + len(data)
    begins = accumulate(map(len, pieces), initial=0)
    return sum(begin < end for begin, _ in zip(begins, pieces, strict=False)) if data else 0


async def _chained(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for data in others:
        yield data


@contextlib.asynccontextmanager
async def _cancelled_on_disconnect(job: Job, receive: Receive) -> AsyncIterator[None]:
    """Inside the block, the job is cancelled when the client goes away, and after it if it is not done."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except BaseException:
        job.cancel()
        raise
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


# The fields of all endpoints that bring schemas.
_WITH_SCHEMAS = ("tools", "response_format", "json_schema", "format", "text", "output_config", "output_format")
Read = TypeVar("Read")


async def in_thread(service: Service, read: Callable[[Service, Json], Read], body: Json) -> Read:
    """What `read` makes of a body, in a thread, because texts and schemas may be large.

    Bodies with schemas have few threads of their own: converting may take seconds, and others would wait for a thread.
    """
    limiter = service.converting if any(body.get(name) for name in _WITH_SCHEMAS) else None
    return await to_thread.run_sync(read, service, body, limiter=limiter)


Asked = tuple[Wanted, Shape]


def answering(
    read: Callable[[Service, Json], Asked | Response],
) -> Callable[[Service, HttpRequest], Awaitable[ASGIApp]]:
    """An endpoint at which texts are written, streamed or whole. A client that goes away cancels them.

    read: tells what a body asks for and how that is sent, or answers where nothing is to be written. It may raise
    SpecrunError and ApiError, and so does the endpoint.
    """

    async def endpoint(service: Service, request: HttpRequest) -> ASGIApp:
        service.check_loaded()  # before the body is read
        asked = await in_thread(service, read, await read_json(request))
        if isinstance(asked, Response):
            return asked
        wanted, shape = asked
        job = service.submit(wanted.prompts, wanted.request, wanted.sending)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            async with _cancelled_on_disconnect(job, receive):
                if job.sending.stream:
                    frames = _events(job, wanted.new_reader, shape)
                    # The status is sent with the first frame, so that what goes wrong before has a status of its own.
                    sent = _chained(await anext(frames), frames)
                    await StreamingResponse(sent, headers=_HEADERS, media_type=shape.media_type).stream_response(send)
                else:
                    await (await _whole(job, wanted.new_reader, shape))(scope, receive, send)

        return answer

    return endpoint


TokenBytes = Callable[[int], bytes]


def timings_json(completion: Completion) -> Json:
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


def logprobs_json(logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes) -> list[Json]:
    """For each token its own log-probability and those of the likeliest tokens. llama-server adds the ids."""

    def told(token: int, logprob: float) -> Json:
        data = token_bytes(token)
        return {"id": token, "token": token_text(data), "bytes": list(data), "logprob": logprob}

    return [{**told(t.token, t.logprob), "top_logprobs": [told(*other) for other in t.top]} for t in logprobs]


def token_text(data: bytes) -> str:
    """The text of a token; U+FFFD for a part of a character."""
    return data.decode("utf-8", errors="replace")

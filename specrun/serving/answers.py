"""Sends the answers of a job, whole or while they are written, in the shape of the endpoint that was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.engine.completion import Completion
from specrun.errors import SpecrunError
from specrun.sampling.logprobs import TokenLogprob
from specrun.serving.api_error import ApiError, of_model
from specrun.serving.event_stream import EventStream, cancelled_on_disconnect
from specrun.serving.job import Answered, Job, Piece
from specrun.serving.reading.deltas import Delta, Reader

KEEP_ALIVE_S = 10.0  # proxies and clients give up on connections that are silent for a minute or so

FinishName = Literal["stop", "length", "tool_calls"]
NewReader = Callable[[], Reader]
"""Makes the reader of one answer, which knows how the model marks the parts of an answer."""


@dataclass
class Answer:
    """An answer of a job, or what was added to it.

    deltas: its parts. logprobs: those of the tokens of its text, where they are asked for.
    finish, completion: OpenAI's name for why it ended, and its counts and times; None while it is being written.
    """

    index: int
    deltas: list[Delta] = field(default_factory=list)
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishName | None = None
    completion: Completion | None = None

    @property
    def ended(self) -> Completion:
        """The completion of an answer that is whole."""
        assert self.completion
        return self.completion


class Shape(Protocol):
    """How an endpoint sends the answers to one request. The methods that yield give server-sent events."""

    keep_alive: bytes

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """All answers as one object."""
        ...

    def begin(self) -> Iterable[bytes]:
        """What comes before anything is written."""
        ...

    def added(self, addition: Answer) -> Iterator[bytes]:
        """An addition to an answer. The first answer is complete before the second begins."""
        ...

    def end(self, completions: Sequence[Completion]) -> Iterable[bytes]:
        """What comes behind the last answer."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """What ended the answers early."""
        ...


async def response_of(request: Request, job: Job, new_reader: NewReader, shape: Shape, is_streamed: bool) -> Response:
    """The answers, streamed or whole. A client that goes away cancels the job. Raises ApiError."""
    if is_streamed:
        return EventStream(job, _events(job, new_reader, shape))
    answers = [Answer(i) for i in range(len(job.asked))]
    async with cancelled_on_disconnect(job, request.receive):
        async for addition in _additions(job, new_reader):
            assert addition
            answer = answers[addition.index]
            answer.deltas += addition.deltas
            answer.logprobs += addition.logprobs
            answer.finish, answer.completion = addition.finish, addition.completion
        return JSONResponse(shape.whole(answers))


async def _events(job: Job, new_reader: NewReader, shape: Shape) -> AsyncIterator[bytes]:
    completions: list[Completion] = []
    for data in shape.begin():
        yield data
    try:
        async for addition in _additions(job, new_reader, KEEP_ALIVE_S):
            if addition is None:
                yield shape.keep_alive
                continue
            for data in shape.added(addition):
                yield data
            if addition.completion:
                completions.append(addition.completion)
    except ApiError as error:
        yield shape.failure(error)
        return
    for data in shape.end(completions):
        yield data


async def _additions(
    job: Job, new_reader: NewReader, keep_alive_s: float | None = None
) -> AsyncIterator[Answer | None]:
    """Everything that is written; None after each `keep_alive_s` seconds without anything new. Raises ApiError."""
    index, reader, has_calls = 0, new_reader(), False
    try:
        async for event in job.events(keep_alive_s):
            if event is None:
                yield None
                continue
            if isinstance(event, Piece):
                addition = Answer(index, reader.push(event.text) if event.text else [], event.logprobs)
            else:
                addition = Answer(index, reader.finish(), completion=event.completion)
            has_calls = has_calls or any(delta.call for delta in addition.deltas)
            if isinstance(event, Answered):
                addition.finish = _finish_name(event.completion, has_calls)
                index, reader, has_calls = index + 1, new_reader(), False
            yield addition
    except SpecrunError as error:
        raise of_model(error) from error


def _finish_name(completion: Completion, has_calls: bool) -> FinishName:
    """OpenAI's name for why an answer ended. An interrupted answer is cut short, as a long answer is."""
    if completion.finish_reason != "stop":
        return "length"
    return "tool_calls" if has_calls else "stop"

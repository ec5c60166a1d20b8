"""Sending an answer while it is written, and noticing that the client has gone away."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from specrun.serving.job import Job

KEEP_ALIVE = b": keep-alive\n\n"  # a comment, which clients skip
KEEP_ALIVE_S = 10.0  # proxies and clients give up on connections that are silent for a minute or so
DONE = b"data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # nginx would hold a stream back


def frame(value: dict[str, Any], event: str | None = None) -> bytes:
    """A server-sent event. event: its name, for the shapes that name them."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


class EventStream(Response):
    """Sends frames as they come. A client that goes away cancels the job."""

    media_type = "text/event-stream"

    def __init__(self, job: Job, frames: AsyncIterator[bytes]) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._job = job
        self._frames = frames

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with cancelled_on_disconnect(self._job, receive):
            async for data in self._frames:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Answers(Protocol):
    """The answers of a job, in the two shapes of an endpoint."""

    async def whole(self) -> dict[str, Any]:
        """All of them as one object."""
        ...

    def frames(self) -> AsyncIterator[bytes]:
        """Server-sent events, as they are written."""
        ...


async def response_of(request: Request, job: Job, answers: Answers, is_streamed: bool) -> Response:
    """The answers, streamed or whole. A client that goes away cancels the job. Raises ApiError."""
    if is_streamed:
        return EventStream(job, answers.frames())
    async with cancelled_on_disconnect(job, request.receive):
        return JSONResponse(await answers.whole())


@contextlib.asynccontextmanager
async def cancelled_on_disconnect(job: Job, receive: Receive) -> AsyncIterator[None]:
    """Inside the block, the job is cancelled when the client goes away, and behind it if it is not done."""

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

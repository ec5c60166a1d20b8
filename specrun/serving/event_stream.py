"""Server-sent events, and noticing that the client has gone away."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specrun.serving.job import Job

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

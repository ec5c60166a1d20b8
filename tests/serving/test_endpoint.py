"""Requests are read in threads, and those with schemas take few of them."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from specrun.serving.answers import in_thread
from specrun.serving.service import Service


@pytest.mark.parametrize("field", ["tools", "response_format", "json_schema", "format", "text", "output_config"])
def test_schemas_do_not_take_the_threads_of_others(field: str) -> None:
    reading, may_end, most = threading.Semaphore(0), threading.Event(), 0

    def read(_: Service, body: dict[str, Any]) -> None:
        if body:
            reading.release()
            may_end.wait()

    async def ask() -> None:
        nonlocal most
        service = Service(None, None)  # type: ignore[arg-type]
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(in_thread, service, read, {field: {"a": 1}})
            for _ in range(2):
                await anyio.to_thread.run_sync(reading.acquire)
            await in_thread(service, read, {})  # would wait for ever
            most = int(service.converting.borrowed_tokens)
            may_end.set()

    anyio.run(ask)
    assert most == 2

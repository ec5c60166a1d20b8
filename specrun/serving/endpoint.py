"""The way from a request to its answers that all addresses share at which texts are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import to_thread
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from specrun.engine.request import Request
from specrun.serving.answers import NewReader, Shape, response_of
from specrun.serving.bodies import read_json
from specrun.serving.prompts import Prompt
from specrun.serving.request_fields import Sending
from specrun.serving.service import LoadedService, Service

# The fields of all endpoints that bring schemas.
_WITH_SCHEMAS = ("tools", "response_format", "json_schema", "format", "text", "output_config", "output_format")


@dataclass(frozen=True)
class Wanted:
    """What a body asks for.

    request: how the prompts are answered, without a prompt. new_reader: makes the reader of an answer.
    sending: how many answers each prompt has, and how they are sent.
    """

    prompts: Sequence[Prompt]
    request: Request
    new_reader: NewReader
    sending: Sending


AnyWanted = TypeVar("AnyWanted", bound=Wanted)


Read = TypeVar("Read")


async def in_thread(service: Service, read: Callable[[Service, dict[str, Any]], Read], body: dict[str, Any]) -> Read:
    """What `read` makes of a body, in a thread, because texts and schemas may be large.

    Bodies with schemas have few threads of their own: converting may take seconds, and others would wait for a thread.
    """
    limiter = service.converting if any(body.get(name) for name in _WITH_SCHEMAS) else None
    return await to_thread.run_sync(read, service, body, limiter=limiter)


async def answered(
    service: Service,
    request: HttpRequest,
    read: Callable[[Service, dict[str, Any]], AnyWanted | Response],
    shape: Callable[[LoadedService, AnyWanted], Shape],
) -> Response:
    """The answers to a request, streamed or whole. read: reads its body, and may answer where nothing is to be written.

    Raises SpecrunError and ApiError.
    """
    loaded = service.loaded
    wanted = await in_thread(service, read, await read_json(request))
    if isinstance(wanted, Response):
        return wanted
    job = service.submit(wanted.prompts, wanted.request, wanted.sending.n, not wanted.sending.cache_prompt)
    return await response_of(request, job, wanted.new_reader, shape(loaded, wanted), wanted.sending.stream)

"""POST /v1/completions: texts that continue prompts, in OpenAI's older shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from specrun.serving.answers import response_of
from specrun.serving.api_error import refused
from specrun.serving.bodies import Fields, Integer, must, parsed, read_json
from specrun.serving.openai_shapes import CompletionShape
from specrun.serving.prompts import Prompt, Prompts
from specrun.serving.reading.deltas import PlainReader
from specrun.serving.request_fields import MOST_LOGPROBS, Sending, read_request
from specrun.serving.service import Service

MOST_PROMPTS = 64

_TokenIds = Annotated[list[int], Field(fail_fast=True)]
_Prompt = str | _TokenIds
_PROMPT = f"be a string, a list of token ids, or a list of at most {MOST_PROMPTS} of them"


class _CompletionFields(Fields):
    prompt: Annotated[
        str
        | Annotated[_TokenIds, Field(min_length=1)]
        | Annotated[list[_Prompt], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)],
        must(_PROMPT),
    ]
    logprobs: Annotated[Integer, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool = False
    suffix: str = ""
    best_of: Annotated[Integer, Field(ge=1, le=MOST_PROMPTS)] = 1


async def completions(service: Service, request: Request) -> Response:
    loaded = service.loaded
    body = await read_json(request)
    asked = read_request(body, service.defaults, loaded.model.llama_model.n_vocab)
    sending, given = parsed(Sending, body), parsed(_CompletionFields, body)
    if given.echo:
        raise refused("echo", "is not possible; put the prompt before the answer yourself")
    if given.suffix:
        raise refused("suffix", "is not possible: the model only continues texts")
    if given.best_of > sending.n:
        raise refused("best_of", "may not be more than n: all answers that are written are sent")
    anew = not sending.cache_prompt
    prompts = await run_in_threadpool(_prompts, given.prompt, loaded.prompts, anew)
    job = service.submit(prompts, replace(asked, logprobs=given.logprobs), sending.n, anew)
    return await response_of(request, job, PlainReader, CompletionShape(loaded, sending, job.asked), sending.stream)


def _prompts(given: Any, prompts: Prompts, anew: bool) -> list[Prompt]:
    several = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    return [prompts.of_text(p, anew) if isinstance(p, str) else prompts.of_tokens(p) for p in several]

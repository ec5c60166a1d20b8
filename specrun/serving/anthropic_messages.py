"""POST /v1/messages and /v1/messages/count_tokens: the next message of a conversation, as Anthropic's clients ask."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.serving.answers import response_of
from specrun.serving.anthropic_fields import openai_body
from specrun.serving.anthropic_shapes import AnthropicShape
from specrun.serving.bodies import parsed, read_json
from specrun.serving.chat_completions import begin, chat_prompt, read_chat
from specrun.serving.request_fields import Streaming
from specrun.serving.service import Service


async def anthropic_messages(service: Service, request: Request) -> Response:
    """The endpoint that answers. Raises ApiError."""
    loaded = service.loaded
    body = await read_json(request)
    is_streamed = parsed(Streaming, body).stream
    chat = await run_in_threadpool(lambda: read_chat(service, openai_body(body)))
    job, new_reader = await begin(service, chat)
    shape = AnthropicShape(loaded.name, len(job.asked[0].prompt.tokens))
    return await response_of(request, job, new_reader, shape, is_streamed)


async def count_tokens(service: Service, request: Request) -> Response:
    """The endpoint that tells how many tokens the prompt of a request has. Raises ApiError."""
    body = await read_json(request)
    chat = await run_in_threadpool(lambda: read_chat(service, openai_body(body, needs_length=False)))
    prompt = await chat_prompt(service, chat)
    return JSONResponse({"input_tokens": len(prompt.tokens)})

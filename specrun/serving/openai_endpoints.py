"""POST /v1/chat/completions and /v1/completions: the next message of a conversation, texts that continue prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, InstanceOf
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from specrun.engine.chat_format import is_begun
from specrun.engine.request import Request
from specrun.reading.deltas import Reader
from specrun.serving.answers import NewReader, response_of
from specrun.serving.api_error import ApiError, refused
from specrun.serving.bodies import Fields, Integer, must, parsed, read_json
from specrun.serving.expected import read_expected
from specrun.serving.messages import read_messages
from specrun.serving.openai_shapes import ChatShape, CompletionShape, OpenAiShape
from specrun.serving.prompts import Prompt
from specrun.serving.request_fields import MOST_LOGPROBS, Sending, read_request
from specrun.serving.service import Service

MOST_PROMPTS = 64

# The prompts of a body, how they are answered (without a prompt), and what makes the reader of an answer.
Read = tuple[list[Prompt], Request, NewReader]


class _ChatFields(Fields):
    logprobs: bool = False
    top_logprobs: Annotated[Integer, Field(ge=0, le=MOST_LOGPROBS)] = 0
    chat_template_kwargs: InstanceOf[dict[str, Any]] = Field({})
    reasoning_effort: str = ""


_TokenIds = Annotated[list[int], Field(fail_fast=True)]
_Prompt = str | _TokenIds


class _CompletionFields(Fields):
    prompt: Annotated[
        str
        | Annotated[_TokenIds, Field(min_length=1)]
        | Annotated[list[_Prompt], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)],
        must(f"be a string, a list of token ids, or a list of at most {MOST_PROMPTS} of them"),
    ]
    logprobs: Annotated[Integer, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool = False
    suffix: str = ""
    best_of: Annotated[Integer, Field(ge=1, le=MOST_PROMPTS)] = 1


async def chat_completions(service: Service, request: HttpRequest) -> Response:
    return await _answered(service, request, read_chat, ChatShape)


async def completions(service: Service, request: HttpRequest) -> Response:
    return await _answered(service, request, _read_completion, CompletionShape)


async def _answered(
    service: Service,
    request: HttpRequest,
    read: Callable[[Service, Mapping[str, Any], Sending], Read],
    shape: type[OpenAiShape],
) -> Response:
    loaded = service.loaded
    body = await read_json(request)
    sending = parsed(Sending, body)
    # In a thread, because texts and schemas may be large.
    prompts, asked, new_reader = await run_in_threadpool(read, service, body, sending)
    job = service.submit(prompts, asked, sending.n, not sending.cache_prompt)
    return await response_of(request, job, new_reader, shape(loaded, sending), sending.stream)


def read_chat(service: Service, body: Mapping[str, Any], sending: Sending) -> Read:
    """What is asked with the conversation in a body. Raises SpecrunError and ApiError."""
    prompts, model = service.loaded.prompts, service.loaded.model
    request, given = read_request(body, service.defaults, model.llama_model.n_vocab), parsed(_ChatFields, body)
    if given.logprobs:
        request = replace(request, logprobs=given.top_logprobs)
    elif given.top_logprobs:
        raise refused("top_logprobs", "needs logprobs to be true")
    form = prompts.format.form
    messages, expected = read_messages(body, form), read_expected(body, form)
    is_formed = expected.schema is not None or request.gbnf is not None or expected.prompt_end
    if is_formed and is_begun(messages) and messages[-1]["content"]:
        why = "end with a message of the assistant, which cannot be continued in a format or as a named call"
        raise refused("messages", f"{why}; leave out the one or the other")
    effort, thinks = given.reasoning_effort, given.reasoning_effort != "none"
    variables = ({"reasoning_effort": effort} if effort and thinks else {}) | given.chat_template_kwargs
    tools = expected.tools.declared if expected.tools else []
    prompt = prompts.of_messages(messages, tools, variables, thinks, expected.prompt_end, not sending.cache_prompt)
    shown = prompts.format.shown(expected.tools is not None)
    request = expected.constrained(replace(request, shown=shown), prompt.text or "")
    if request.gbnf is not None and any(plan.method.samples for plan in model.plans.candidates):
        raise ApiError("the server's --method cannot follow a grammar, which this request needs; start it with another")
    return [prompt], request, expected.reader(prompt.text or "")


def _read_completion(service: Service, body: Mapping[str, Any], sending: Sending) -> Read:
    prompts = service.loaded.prompts
    request = read_request(body, service.defaults, service.loaded.model.llama_model.n_vocab)
    given = parsed(_CompletionFields, body)
    if given.echo:
        raise refused("echo", "is not possible; put the prompt before the answer yourself")
    if given.suffix:
        raise refused("suffix", "is not possible: the model only continues texts")
    if given.best_of > sending.n:
        raise refused("best_of", "may not be more than n: all answers that are written are sent")
    prompt: Any = given.prompt
    several = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    anew = not sending.cache_prompt
    made = [prompts.of_text(p, anew) if isinstance(p, str) else prompts.of_tokens(p) for p in several]
    return made, replace(request, logprobs=given.logprobs), Reader

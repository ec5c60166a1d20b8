"""POST /v1/chat/completions: the next message of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, InstanceOf
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from specrun.engine.request import Request
from specrun.errors import SpecrunError
from specrun.llama.chat_template import Message
from specrun.serving.answers import NewReader, response_of
from specrun.serving.api_error import ApiError, of_model, refused
from specrun.serving.bodies import Fields, Integer, parsed, read_json
from specrun.serving.expected import Expected, read_expected
from specrun.serving.job import Job
from specrun.serving.messages import read_messages
from specrun.serving.openai_shapes import ChatShape
from specrun.serving.prompts import Prompt
from specrun.serving.request_fields import MOST_LOGPROBS, Sending, read_request
from specrun.serving.service import Service


class _ChatFields(Fields):
    logprobs: bool = False
    top_logprobs: Annotated[Integer, Field(ge=0, le=MOST_LOGPROBS)] = 0
    chat_template_kwargs: InstanceOf[dict[str, Any]] = Field({})
    reasoning_effort: str = ""


@dataclass(frozen=True)
class Chat:
    """A request for the next message of a conversation.

    messages: the conversation. variables: further ones for the chat template, such as `enable_thinking`.
    expected: what the answer shall be. request: how the answer is written, without a prompt.
    """

    messages: Sequence[Message]
    request: Request
    expected: Expected
    variables: Mapping[str, Any]


async def chat_completions(service: Service, request: HttpRequest) -> Response:
    loaded = service.loaded
    body = await read_json(request)
    sending = parsed(Sending, body)
    chat = await run_in_threadpool(read_chat, service, body)  # in a thread, because schemas may be large
    job, new_reader = await begin(service, chat, sending.n, anew=not sending.cache_prompt)
    return await response_of(request, job, new_reader, ChatShape(loaded, sending, job.asked), sending.stream)


def read_chat(service: Service, body: Mapping[str, Any]) -> Chat:
    loaded = service.loaded
    form = loaded.prompts.form
    request = read_request(body, service.defaults, loaded.model.llama_model.n_vocab)
    given = parsed(_ChatFields, body)
    if given.logprobs:
        request = replace(request, logprobs=given.top_logprobs)
    elif given.top_logprobs:
        raise refused("top_logprobs", "needs logprobs to be true")
    effort = given.reasoning_effort
    variables = {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort} if effort else {}
    variables |= given.chat_template_kwargs
    return Chat(read_messages(body, form), request, read_expected(body, form), variables)


async def chat_prompt(service: Service, chat: Chat, anew: bool = False) -> Prompt:
    """The prompt of a conversation. anew: as in `Prompts`. Raises ApiError."""
    tools, end = chat.expected.tools, chat.expected.prompt_end
    declared = tools.declared if tools else []
    of_messages = service.loaded.prompts.of_messages
    return await run_in_threadpool(of_messages, chat.messages, declared, chat.variables, end, anew)


async def begin(service: Service, chat: Chat, n: int = 1, anew: bool = False) -> tuple[Job, NewReader]:
    """Put a job for `n` answers into the queue. Returns it, and what makes their readers. anew: as in `Asked`."""
    prompt = await chat_prompt(service, chat, anew)
    text = prompt.text or ""
    shown = service.loaded.prompts.control_tokens(chat.expected.form.markers(chat.expected.tools is not None))
    try:
        request = await run_in_threadpool(chat.expected.constrained, replace(chat.request, shown=shown), text)
    except SpecrunError as error:
        raise of_model(error) from error
    if request.gbnf is not None and any(plan.method.samples for plan in service.loaded.model.plans.candidates):
        raise ApiError("the server's --method cannot follow a grammar, which this request needs; start it with another")
    return service.submit([prompt], request, n, anew), chat.expected.reader(text)

"""From a chat request that was read to the job that answers it. Every shape of chat goes this way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.concurrency import run_in_threadpool

from specrun.engine.request import Request
from specrun.errors import SpecrunError
from specrun.llama.chat_template import Message
from specrun.serving.answer_reader import AnswerReader
from specrun.serving.api_error import ApiError, of_model
from specrun.serving.expected import Expected
from specrun.serving.job import Job
from specrun.serving.prompts import Prompt, Prompts
from specrun.serving.service import Service


@dataclass(frozen=True)
class Chat:
    """A request for the next message of a conversation.

    messages: the conversation. variables: further ones for the chat template. expected: what the answer shall be.
    request: how the answer is written, without a prompt.
    """

    messages: Sequence[Message]
    request: Request
    expected: Expected
    variables: Mapping[str, Any] = field(default_factory=dict)


async def chat_prompt(chat: Chat, prompts: Prompts, anew: bool = False) -> Prompt:
    """The prompt of a conversation. anew: as in `Prompts`. Raises ApiError."""
    tools, end = chat.expected.tools, chat.expected.prompt_end
    declared = tools.declared if tools else []
    return await run_in_threadpool(prompts.of_messages, chat.messages, declared, chat.variables, end, anew)


async def begin(service: Service, chat: Chat, n: int = 1, anew: bool = False) -> tuple[Job, Callable[[], AnswerReader]]:
    """Put a job for `n` answers into the queue. Returns it, and what makes the reader of each. Raises ApiError.

    anew: as in `Asked`.
    """
    loaded = service.loaded
    prompts = loaded.prompts
    prompt = await chat_prompt(chat, prompts, anew)
    text = prompt.text or ""
    shown = prompts.control_tokens(chat.expected.markers)
    try:
        request = await run_in_threadpool(chat.expected.constrained, replace(chat.request, shown=shown), text)
    except SpecrunError as error:
        raise of_model(error) from error
    if request.gbnf is not None and any(plan.method.samples for plan in loaded.model.plans.candidates):
        raise ApiError("the server's --method cannot follow a grammar, which this request needs; start it with another")
    job = service.submit([prompt], request, n, anew)
    new_reader = chat.expected.reader(text)
    return job, lambda: AnswerReader(new_reader())

"""POST /v1/chat/completions and /v1/completions: the next message of a conversation, texts that continue prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, InstanceOf
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from specrun.engine.chat_format import is_begun
from specrun.engine.model import Model
from specrun.engine.request import Request
from specrun.reading.deltas import Reader
from specrun.reading.form import AnswerForm
from specrun.serving.api_error import ApiError, refused
from specrun.serving.bodies import Fields, Integer, must, parsed
from specrun.serving.endpoint import Wanted, answered
from specrun.serving.expected import read_expected
from specrun.serving.messages import read_messages
from specrun.serving.openai_shapes import ChatShape, CompletionShape
from specrun.serving.prompts import Prompt, Prompts
from specrun.serving.request_fields import MOST_LOGPROBS, Sending, read_request
from specrun.serving.service import Service

MOST_PROMPTS = 64


class _ChatFields(Fields):
    logprobs: bool = False
    top_logprobs: Annotated[Integer, Field(ge=0, le=MOST_LOGPROBS)] = 0
    chat_template_kwargs: InstanceOf[dict[str, Any]] = Field({})
    reasoning_effort: str = ""


class _Named(Fields):
    name: str


class _AllowedTool(Fields):
    function: _Named


class _AllowedTools(Fields):
    mode: Annotated[Literal["auto", "required"], must("be auto or required")]
    tools: list[_AllowedTool]


_TokenIds = Annotated[list[int], Field(fail_fast=True)]
TextPrompt = Annotated[
    str
    | Annotated[_TokenIds, Field(min_length=1)]
    | Annotated[list[str | _TokenIds], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)],
    must(f"be a string, a list of token ids, or a list of at most {MOST_PROMPTS} of them"),
]


class _CompletionFields(Fields):
    prompt: TextPrompt
    logprobs: Annotated[Integer, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool = False
    suffix: str = ""
    best_of: Annotated[Integer, Field(ge=1, le=MOST_PROMPTS)] = 1


async def chat_completions(service: Service, request: HttpRequest) -> Response:
    return await answered(service, request, read_chat, ChatShape)


async def completions(service: Service, request: HttpRequest) -> Response:
    return await answered(service, request, _read_completion, CompletionShape)


def read_chat(service: Service, body: Mapping[str, Any]) -> Wanted:
    """What is asked with the conversation in a body. Raises SpecrunError and ApiError."""
    sending = parsed(Sending, body)
    prompts, model = service.loaded.prompts, service.loaded.model
    request, given = read_request(body, service.defaults, model.llama_model.n_vocab), parsed(_ChatFields, body)
    if given.logprobs:
        request = replace(request, logprobs=given.top_logprobs)
    elif given.top_logprobs:
        raise refused("top_logprobs", "needs logprobs to be true")
    form = prompts.format.form
    messages, expected = read_messages(body, form), read_expected(_with_allowed_tools(body), form)
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
    _check_grammar(request, model)
    return Wanted([prompt], request, expected.reader(prompt.text or ""), sending)


def _with_allowed_tools(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body without the tools that `tool_choice` does not allow, if it is a list of some. Raises ApiError."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    if not (isinstance(choice, dict) and choice.get("type") == "allowed_tools" and isinstance(tools, list)):
        return body
    at = "tool_choice.allowed_tools"
    allowed = parsed(_AllowedTools, choice.get("allowed_tools"), at)
    names = {tool.function.name for tool in allowed.tools}
    kept = {tool["function"]["name"]: tool for tool in tools if _function_name(tool) in names}
    if not names or names - kept.keys():
        raise refused(at, "must name functions of tools")
    return {**body, "tools": list(kept.values()), "tool_choice": allowed.mode}


def _function_name(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _read_completion(service: Service, body: Mapping[str, Any]) -> Wanted:
    sending, given = parsed(Sending, body), parsed(_CompletionFields, body)
    if given.echo:
        raise refused("echo", "is not possible; put the prompt before the answer yourself")
    if given.best_of > sending.n:
        raise refused("best_of", "may not be more than n: all answers that are written are sent")
    prompts = service.loaded.prompts
    if not given.suffix:
        made = text_prompts(prompts, given.prompt, not sending.cache_prompt)
    elif isinstance(given.prompt, str):
        made = [prompts.of_gap(given.prompt, given.suffix)]
    else:
        raise refused("suffix", "needs a prompt that is a string")
    wanted = read_text(service, body, made, sending)
    return replace(wanted, request=replace(wanted.request, logprobs=given.logprobs))


def text_prompts(prompts: Prompts, given: Any, anew: bool) -> list[Prompt]:
    """What a `TextPrompt` stands for. anew: see `Prompts.of_text`. Raises ApiError."""
    several = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    return [prompts.of_text(p, anew) if isinstance(p, str) else prompts.of_tokens(p) for p in several]


def read_text(service: Service, body: Mapping[str, Any], prompts: Sequence[Prompt], sending: Sending) -> Wanted:
    """What is asked with texts that the model goes on with. Raises SpecrunError and ApiError."""
    model = service.loaded.model
    expected = read_expected({**body, "tools": None}, AnswerForm())  # it is told of no tools, and nothing is marked
    request = expected.constrained(read_request(body, service.defaults, model.llama_model.n_vocab), "")
    _check_grammar(request, model)
    return Wanted(prompts, request, Reader, sending)


def _check_grammar(request: Request, model: Model) -> None:
    if request.gbnf is not None and any(plan.method.samples for plan in model.plans.candidates):
        raise ApiError("the server's --method cannot follow a grammar, which this request needs; start it with another")

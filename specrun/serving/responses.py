"""/v1/responses: the next turn of a conversation whose parts are items, as OpenAI's newer programs ask for it.

Requests are turned into the shape of /v1/chat/completions, so that both are read in the same way. Responses are kept
for later requests, unless a request says otherwise.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, InstanceOf
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.sampling import SamplingParameters
from specrun.serving.answers import Asked, answering
from specrun.serving.openai_endpoints import ResponsesShape
from specrun.serving.prompts import MOST_MESSAGES, joined
from specrun.serving.refusals import NOT_FOUND, ApiError, refused, renaming
from specrun.serving.request_fields import Fields, Integer, Json, must, parsed
from specrun.serving.service import KeptResponses, Service
from specrun.serving.tools import MOST_TOOLS, function_json
from specrun.serving.wanted import read_chat

_PARTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")


_Text = Annotated[str, BeforeValidator(lambda content: joined(content, _PARTS))]


class _Item(Fields):
    """An item of a conversation. The fields are those of all types."""

    type: Annotated[
        Literal["message", "reasoning", "function_call", "function_call_output"],
        must("be message, reasoning, function_call, function_call_output or item_reference"),
    ] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: _Text = ""
    summary: _Text = ""
    call_id: str = ""
    namespace: str = ""
    name: str = ""
    arguments: str = ""
    output: _Text = ""


class _Tool(Fields):
    type: str
    name: str = ""
    description: Any = None
    parameters: Any = None
    strict: Any = None
    tools: Annotated[list[_Tool], Field(max_length=MOST_TOOLS, fail_fast=True)] = Field([])  # of a namespace


class _TextFields(Fields):
    format: InstanceOf[Json] | None = None


class _ResponsesFields(Fields):
    input: Annotated[
        list[Any],
        Field(max_length=MOST_MESSAGES),
        BeforeValidator(lambda given: [{"role": "user", "content": given}] if isinstance(given, str) else given),
    ] = Field([])
    instructions: _Text = ""
    max_output_tokens: Integer | None = None
    previous_response_id: str | None = None
    store: bool = True
    include: list[str] = Field([])
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
        Field(max_length=16),
        must("have at most 16 names of at most 64 characters, each with a string of at most 512"),
    ] = Field({})
    text: _TextFields = _TextFields()
    reasoning: InstanceOf[Json] = Field({})
    tools: Annotated[list[_Tool], Field(max_length=MOST_TOOLS, fail_fast=True)] = Field([])
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True


def _functions(given: Sequence[_Tool]) -> list[tuple[str, str, _Tool]]:
    """The functions among tools and in their namespaces: their places, the namespaces, and the functions."""
    several = [(f"tools[{i}]", "", tool) for i, tool in enumerate(given)]
    for i, space in enumerate(given):
        if space.type == "namespace":
            several += [(f"tools[{i}].tools[{k}]", space.name, tool) for k, tool in enumerate(space.tools)]
    return [one for one in several if one[2].type == "function"]


def _known_name(namespace: str, name: str) -> str:
    """What the model calls a tool: there are no namespaces in chat templates."""
    return f"{namespace}__{name}" if namespace else name


def _chat_fields(given: _ResponsesFields, conversation: Sequence[Any]) -> Json:
    """The fields of /v1/chat/completions that ask for the same. Raises ApiError."""
    system = [{"role": "system", "content": given.instructions}] if given.instructions else []
    n_before = len(conversation) - len(given.input)
    items = []
    for i, item in enumerate(conversation, -n_before):
        items.append(parsed(_Item, item, f"input[{i}]"))
        if items[-1].type == "message" and items[-1].role is None:
            raise refused(f"input[{i}].role", "is missing")
    wanted = given.text.format
    schema = None if wanted is None else {name: wanted.get(name) for name in ("name", "schema", "strict")}
    return {
        "messages": system + _messages(items),
        "tools": _tools(given.tools),
        "tool_choice": _tool_choice(given.tool_choice),
        "parallel_tool_calls": given.parallel_tool_calls,
        "max_completion_tokens": given.max_output_tokens,
        "reasoning_effort": given.reasoning.get("effort"),
        "response_format": None if wanted is None else {"type": wanted.get("type"), "json_schema": schema},
        "logprobs": None,
        "top_logprobs": None,
        "n": 1,
    }


def _messages(items: Iterable[_Item]) -> list[Json]:
    """The messages that the items are: what the assistant thought, said and called in a row is one."""
    messages: list[Json] = []
    for item in items:
        if item.type == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
            continue
        if item.type == "message" and item.role != "assistant":
            messages.append({"role": item.role, "content": item.content})
            continue
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        is_said = last is not None and (last["content"] or (item.type == "reasoning" and last["tool_calls"]))
        if last is None or (is_said and item.type != "function_call"):
            last = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
            messages.append(last)
        if item.type == "function_call":
            name = _known_name(item.namespace, item.name)
            last["tool_calls"].append({"id": item.call_id, **function_json(name=name, arguments=item.arguments)})
        elif item.type == "reasoning":
            last["reasoning_content"] += item.content or item.summary
        else:
            last["content"] = item.content
    return messages


def _tools(given: Sequence[_Tool]) -> list[Json]:
    """The tools that the model is told about. Others run on OpenAI's servers, so nobody could answer their calls.

    Programs offer such tools beside their own without being asked, and get on without; alone they are what is wanted.
    Raises ApiError.
    """
    functions, same = _functions(given), {"description", "parameters", "strict"}
    if given and not functions:
        why = f"cannot be {given[0].type}, which does not run here; the model can call functions"
        raise refused("tools[0].type", why)
    return [function_json(name=_known_name(s, one.name), **one.model_dump(include=same)) for _, s, one in functions]


def _tool_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind == "function":
        return function_json(name=choice.get("name"))
    if kind == "allowed_tools" and isinstance(choice.get("tools"), list):
        allowed = [function_json(name=tool.get("name")) for tool in choice["tools"] if isinstance(tool, dict)]
        return {"type": kind, kind: {"mode": choice.get("mode"), "tools": allowed}}
    raise refused("tool_choice", "must be none, auto, required, or name a function of tools")


# Fields that ask for what only OpenAI's servers have.
_ELSEWHERE = {
    "background": "is not possible: an answer is written while its client waits",
    "conversation": "is not possible: send the items as input, or previous_response_id",
    "prompt": "is not possible: there are no stored prompts; send instructions and input",
}
# Of chat's fields -> what they are called here, for messages about what is wrong in them.
_NAMES = {
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
}


async def kept_response(service: Service, request: Request) -> Response:
    """A response that was kept; or, with DELETE, no longer is. Raises ApiError."""
    id_ = request.path_params["id"]
    kept = service.responses.find(id_)
    if kept is None:
        raise ApiError(f"Response with id '{id_}' not found. Only the latest are kept, in memory.", NOT_FOUND)
    if request.method != "DELETE":
        return JSONResponse(kept[0])
    service.responses.forget(id_)
    return JSONResponse({"id": id_, "object": "response", "deleted": True})


@answering
def responses(service: Service, body: Json) -> Asked:
    """The next turn of a conversation. Raises SpecrunError and ApiError."""
    for name, why in _ELSEWHERE.items():
        if body.get(name):
            raise refused(name, why)
    given = parsed(_ResponsesFields, body)
    if "message.output_text.logprobs" in given.include:
        raise refused("include", "cannot have log-probabilities here; /v1/chat/completions gives them")
    conversation, functions = _conversation(given, service.responses), _functions(given.tools)
    with renaming(_NAMES | {f"tools[{i}].function": at for i, (at, _, _) in enumerate(functions)}):
        wanted = read_chat(service, body | _chat_fields(given, conversation))
    response = {**_begun(body, given, wanted.request.sampling), "model": service.loaded.name, "output": []}
    namespaces = {_known_name(space, tool.name): (space, tool.name) for _, space, tool in functions if space}
    return wanted, ResponsesShape(response, conversation, namespaces, service.responses if given.store else None)


def _conversation(given: _ResponsesFields, kept: KeptResponses) -> list[Json]:
    """The items of earlier responses and of this request, references replaced by what they mean."""
    before: list[Json] = []
    if given.previous_response_id is not None:
        found, param = kept.find(given.previous_response_id), "previous_response_id"
        if found is None:
            why = f"Previous response with id '{given.previous_response_id}' not found. "
            advice = "Only the latest are kept, in memory; send the whole conversation as input."
            raise ApiError(why + advice, param=param, code="previous_response_not_found")
        before = found[1]
    items: list[Json] = []
    for i, item in enumerate(given.input):
        # Items without a type are messages, or references if they have nothing but an id.
        if isinstance(item, dict) and (item.get("type") == "item_reference" or set(item) == {"id"}):
            id_ = str(item.get("id"))
            if (item := kept.item(id_)) is None:
                why = f"Item with id '{id_}' not found. Only the latest are kept, in memory; send it."
                raise ApiError(why, NOT_FOUND, param=f"input[{i}].id")
        items.append(item)
    return [*before, *items]


def _begun(body: Json, given: _ResponsesFields, sampling: SamplingParameters) -> Json:
    """The response before anything is written, with what the request asked for."""
    return {
        "id": f"resp_{secrets.token_hex(24)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "completed_at": None,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": given.max_output_tokens,
        "metadata": given.metadata,
        "parallel_tool_calls": given.parallel_tool_calls,
        "previous_response_id": given.previous_response_id,
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": given.reasoning.get("effort"), "summary": None},
        "service_tier": "default",
        "store": given.store,
        "temperature": sampling.temperature,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": given.tool_choice,
        "tools": [tool for tool in body.get("tools") or [] if tool["type"] in ("function", "namespace")],
        "top_logprobs": 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "usage": None,
    }

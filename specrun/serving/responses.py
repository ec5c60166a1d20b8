"""/v1/responses: the next turn of a conversation whose parts are items, as OpenAI's newer programs ask for it.

Requests are turned into the shape of /v1/chat/completions, so that both are read in the same way. Responses are kept
for later requests, unless a request says otherwise.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.serving.api_error import NOT_FOUND, ApiError, refused
from specrun.serving.bodies import parsed
from specrun.serving.endpoint import Wanted, answered
from specrun.serving.kept_responses import Kept, KeptResponses
from specrun.serving.openai_endpoints import read_chat
from specrun.serving.responses_fields import ResponsesFields, chat_fields, tool_names
from specrun.serving.responses_shape import ResponsesShape
from specrun.serving.service import LoadedService, Service

Json = dict[str, Any]

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
}


@dataclass(frozen=True)
class _Asked(Wanted):
    """response: the object of the answer, before anything is written. conversation: the items that are answered."""

    response: Json
    conversation: list[Json]
    given: ResponsesFields


async def responses(service: Service, request: Request) -> Response:
    def shape(loaded: LoadedService, asked: _Asked) -> ResponsesShape:
        kept = service.responses if asked.given.store else None
        return ResponsesShape(loaded, asked.response, asked.conversation, asked.given.namespaces, kept)

    return await answered(service, request, _read, shape)


async def kept_response(service: Service, request: Request) -> Response:
    """A response that was kept. Raises ApiError."""
    return JSONResponse(_found(service.responses, request.path_params["id"]).response)


async def forget_response(service: Service, request: Request) -> Response:
    id_ = _found(service.responses, request.path_params["id"]).response["id"]
    service.responses.forget(id_)
    return JSONResponse({"id": id_, "object": "response", "deleted": True})


def _found(kept: KeptResponses, id_: str) -> Kept:
    found = kept.find(id_)
    if found is None:
        raise ApiError(f"Response with id '{id_}' not found. Only the latest are kept, in memory.", NOT_FOUND)
    return found


def _read(service: Service, body: Json) -> _Asked:
    """What is asked with a body. Raises SpecrunError and ApiError."""
    for name, why in _ELSEWHERE.items():
        if body.get(name):
            raise refused(name, why)
    given = parsed(ResponsesFields, body)
    conversation = _conversation(given, service.responses)
    try:
        wanted = read_chat(service, body | chat_fields(given, conversation))
    except ApiError as error:
        raise error.renamed(_NAMES | tool_names(given)) from error
    return _Asked(**vars(wanted), response=_begun(body, given, wanted), conversation=conversation, given=given)


def _conversation(given: ResponsesFields, kept: KeptResponses) -> list[Json]:
    """The items of earlier responses and of this request, references replaced by what they mean."""
    before: list[Json] = []
    if given.previous_response_id is not None:
        found, param = kept.find(given.previous_response_id), "previous_response_id"
        if found is None:
            why = f"Previous response with id '{given.previous_response_id}' not found. "
            advice = "Only the latest are kept, in memory; send the whole conversation as input."
            raise ApiError(why + advice, param=param, code="previous_response_not_found")
        before = found.conversation
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


def _begun(body: Json, given: ResponsesFields, wanted: Wanted) -> Json:
    """The response before anything is written, with what the request asked for."""
    sampling, effort = wanted.request.sampling, given.reasoning.effort
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
        "reasoning": {"effort": effort or None, "summary": None},
        "service_tier": "default",
        "store": given.store,
        "temperature": sampling.temperature,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": given.tool_choice,
        "tools": [tool for tool in body.get("tools") or [] if tool["type"] in ("function", "namespace")],
        "top_logprobs": given.top_logprobs,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "usage": None,
    }

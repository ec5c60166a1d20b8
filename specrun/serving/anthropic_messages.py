"""POST /v1/messages and /v1/messages/count_tokens: the next message of a conversation, as Anthropic's clients ask.

Requests are turned into OpenAI's shape, so that both are read in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, InstanceOf
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.serving.answers import response_of
from specrun.serving.anthropic_shapes import AnthropicShape
from specrun.serving.api_error import refused
from specrun.serving.bodies import Fields, Integer, must, parsed, read_json
from specrun.serving.chat_completions import begin, chat_prompt, read_chat
from specrun.serving.messages import MOST_MESSAGES, joined
from specrun.serving.reading.json_call import whole_characters
from specrun.serving.request_fields import Streaming
from specrun.serving.service import Service
from specrun.serving.tools import MOST_TOOLS

_MOST_BLOCKS = 10_000  # in a message
_SAME = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "repeat_penalty", "chat_template_kwargs")
_CHOICES: dict[str, Any] = {"": "auto", "auto": "auto", "any": "required", "none": "none"}

_Text = Annotated[str, BeforeValidator(lambda content: joined(content or "", None))]


class _Block(Fields):
    """A part of a message. The fields are those of all types."""

    type: str = ""
    text: str | None = None
    thinking: str = ""
    id: str | None = None
    name: str | None = None
    input: InstanceOf[dict[str, Any]] = Field({})
    tool_use_id: str = ""
    content: _Text = ""


class _Message(Fields):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[_Block],
        Field(max_length=_MOST_BLOCKS, fail_fast=True),
        BeforeValidator(lambda content: [{"type": "text", "text": content}] if isinstance(content, str) else content),
    ] = Field([])


class _Thinking(Fields):
    type: str = ""


class _Tool(Fields):
    type: Any = "custom"
    name: Any = None
    description: Any = None
    input_schema: Any = None


class _Choice(Fields):
    type: Annotated[Literal["", "auto", "any", "tool", "none"], must("be auto, any, tool or none")] = ""
    name: str | None = None
    disable_parallel_tool_use: bool = False


class _ChoiceField(Fields):
    tool_choice: _Choice = _Choice()


class _AnthropicFields(Fields):
    max_tokens: Annotated[Integer, Field(ge=1, le=2**31 - 1)] | None = None
    system: _Text = ""
    messages: Annotated[list[_Message], Field(max_length=MOST_MESSAGES, fail_fast=True)] = Field([])
    stop_sequences: Annotated[list[Any], Field(max_length=_MOST_BLOCKS)] = Field([])
    tools: Annotated[list[_Tool], Field(max_length=MOST_TOOLS, fail_fast=True)] = Field([])
    thinking: _Thinking = _Thinking()


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


def openai_body(body: Mapping[str, Any], needs_length: bool = True) -> dict[str, Any]:
    """The body of /v1/chat/completions that asks for the same. Raises ApiError for what it cannot say.

    needs_length: whether `max_tokens` must be there, as it must with Anthropic.
    """
    given = parsed(_AnthropicFields, body)
    if needs_length and given.max_tokens is None:
        raise refused("max_tokens", "is missing")
    result: dict[str, Any] = {name: body[name] for name in _SAME if body.get(name) is not None}
    result["messages"] = [{"role": "system", "content": given.system}] if given.system else []
    for i, message in enumerate(given.messages):
        result["messages"] += _OPENAI[message.role](f"messages[{i}].content", message.content)
    if given.stop_sequences:
        result["stop"] = given.stop_sequences
    # Tools of other types run on Anthropic's servers. The model is not told about them.
    tools = [tool for tool in given.tools if tool.type == "custom"]
    if tools:
        result["tools"] = [{"type": "function", "function": _function(tool)} for tool in tools]
        choice = parsed(_ChoiceField, body).tool_choice
        named = {"type": "function", "function": {"name": choice.name}}
        result["tool_choice"] = named if choice.type == "tool" else _CHOICES[choice.type]
        result["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if given.thinking.type == "disabled":
        result["reasoning_effort"] = "none"
    return result


def _function(tool: _Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}


def _user(name: str, blocks: list[_Block]) -> Iterator[dict[str, Any]]:
    """A message of the user: the answers of tools, and the text behind them."""
    texts = []
    for i, block in enumerate(blocks):
        if block.type == "text":
            texts.append(block.text or "")
        elif block.type == "tool_result":
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.content}
        else:
            why = f"must be text or tool_result; this model reads no {whole_characters(block.type) or 'other parts'}"
            raise refused(f"{name}[{i}].type", why)
    if texts:
        yield {"role": "user", "content": "\n".join(texts)}


def _assistant(name: str, blocks: list[_Block]) -> Iterator[dict[str, Any]]:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(blocks):
        if block.type == "text":
            texts.append(block.text or "")
        elif block.type == "thinking":
            thoughts.append(block.thinking)
        elif block.type == "tool_use":
            function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif block.type != "redacted_thinking":
            raise refused(f"{name}[{i}].type", "must be text, thinking or tool_use in a message of the assistant")
    message = {"role": "assistant", "content": "\n".join(texts), "reasoning_content": "\n".join(thoughts)}
    yield {**message, "tool_calls": calls}


def _system(name: str, blocks: list[_Block]) -> Iterator[dict[str, Any]]:
    """A message of the system, which Claude Code has between the others."""
    texts = [block.text for block in blocks if block.text is not None]
    if len(texts) < len(blocks):
        raise refused(name, "must be a string or blocks of the type text")
    yield {"role": "system", "content": "\n".join(texts)}


_OPENAI = {"user": _user, "assistant": _assistant, "system": _system}

"""POST /v1/messages and /v1/messages/count_tokens: the next message of a conversation, as Anthropic's clients ask.

Requests are turned into OpenAI's shape, so that both are read in the same way. Answers are messages of blocks.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, InstanceOf
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.decoding.completion import Completion
from specrun.reading.deltas import Delta, arguments_of, whole_parts
from specrun.serving.answers import Answer, Asked, Shape, answering, frame, in_thread
from specrun.serving.prompts import MOST_MESSAGES, joined
from specrun.serving.refusals import ApiError, refused
from specrun.serving.request_fields import Fields, Integer, Json, must, parsed, read_json
from specrun.serving.service import Service, cached_tokens
from specrun.serving.tools import MOST_TOOLS, function_json
from specrun.serving.wanted import read_chat

_MOST_BLOCKS = 10_000  # in a message
_SAME = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "repeat_penalty", "chat_template_kwargs"),
    *("stream", "cache_prompt"),
)
_TYPES = {"user": ("text", "tool_result"), "assistant": ("text", "thinking", "tool_use", "redacted_thinking")}
_CHOICES: dict[str, Any] = {"": "auto", "auto": "auto", "any": "required", "none": "none"}
_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

_Text = Annotated[str, BeforeValidator(lambda content: joined(content or "", ()))]


class _Block(Fields):
    """A part of a message. The fields are those of all types."""

    type: str = ""
    text: str | None = None
    thinking: str = ""
    id: str | None = None
    name: str | None = None
    input: InstanceOf[Json] = Field({})
    tool_use_id: str = ""
    content: _Text = ""


class _Message(Fields):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[_Block],
        Field(max_length=_MOST_BLOCKS, fail_fast=True),
        BeforeValidator(lambda content: [{"type": "text", "text": content}] if isinstance(content, str) else content),
    ] = Field([])


class _Choice(Fields):
    type: Annotated[Literal["", "auto", "any", "tool", "none"], must("be auto, any, tool or none")] = ""
    name: str | None = None
    disable_parallel_tool_use: bool = False


class _OutputFormat(Fields):
    type: Annotated[Literal["json_schema"], must("be json_schema")]
    schema_: Any = Field(alias="schema")


class _OutputConfig(Fields):
    format: _OutputFormat | None = None


class _AnthropicFields(Fields):
    max_tokens: Annotated[Integer, Field(ge=1, le=2**31 - 1)] | None = None
    system: _Text = ""
    messages: Annotated[list[_Message], Field(max_length=MOST_MESSAGES, fail_fast=True)] = Field([])
    stop_sequences: Annotated[list[Any], Field(max_length=_MOST_BLOCKS)] = Field([])
    tools: Annotated[list[InstanceOf[Json]], Field(max_length=MOST_TOOLS, fail_fast=True)] = Field([])
    tool_choice: _Choice = _Choice()
    thinking: InstanceOf[Json] = Field({})
    output_config: _OutputConfig = _OutputConfig()
    output_format: _OutputFormat | None = None  # its name before it was output_config.format


async def count_tokens(service: Service, request: Request) -> Response:
    """The endpoint that tells how many tokens the prompt of a request has. Raises SpecrunError and ApiError."""
    body = await read_json(request)
    wanted = await in_thread(service, lambda s, given: read_chat(s, openai_body(given, needs_length=False)), body)
    return JSONResponse({"input_tokens": len(wanted.prompts[0].tokens)})


@answering
def anthropic_messages(service: Service, body: Json) -> Asked:
    """The endpoint that writes the next message. Raises SpecrunError and ApiError."""
    wanted = read_chat(service, openai_body(body))
    return wanted, _AnthropicShape(service.loaded.name, len(wanted.prompts[0].tokens))


def openai_body(body: Json, needs_length: bool = True) -> Json:
    """The body of /v1/chat/completions that asks for the same. Raises ApiError for what it cannot say.

    needs_length: whether `max_tokens` must be there, as it must with Anthropic.
    """
    given = parsed(_AnthropicFields, body)
    if needs_length and given.max_tokens is None:
        raise refused("max_tokens", "is missing")
    result: Json = {name: body.get(name) for name in _SAME}
    result["messages"] = [{"role": "system", "content": given.system}] if given.system else []
    for i, message in enumerate(given.messages):
        result["messages"] += _openai(f"messages[{i}].content", message)
    if given.stop_sequences:
        result["stop"] = given.stop_sequences
    # Tools of other types run on Anthropic's servers. The model is not told about them.
    tools = [tool for tool in given.tools if tool.get("type") in (None, "custom")]
    if tools:
        result["tools"] = [
            function_json(
                parameters=t.get("input_schema"), **{name: t.get(name) for name in ("name", "description", "strict")}
            )
            for t in tools
        ]
        choice = given.tool_choice
        named = function_json(name=choice.name)
        result["tool_choice"] = named if choice.type == "tool" else _CHOICES[choice.type]
        result["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if wanted := given.output_config.format or given.output_format:
        result["response_format"] = {"type": "json_schema", "json_schema": {"schema": wanted.schema_}}
    if given.thinking.get("type") == "disabled":
        result["reasoning_effort"] = "none"
    return result


def _openai(name: str, message: _Message) -> list[Json]:
    """The messages that say the same in OpenAI's shape: the answers of tools come before the text after them."""
    role, blocks = message.role, message.content
    if role == "system":  # as Claude Code has between the others
        if any(block.text is None for block in blocks):
            raise refused(name, "must be a string or blocks of the type text")
        return [{"role": "system", "content": "\n".join(block.text or "" for block in blocks)}]
    for i, block in enumerate(blocks):
        if block.type not in _TYPES[role]:
            why = f"must be text or tool_result; this model reads no {block.type or 'other parts'}"
            if role == "assistant":
                why = "must be text, thinking or tool_use in a message of the assistant"
            raise refused(f"{name}[{i}].type", why)
    texts = [block.text or "" for block in blocks if block.type == "text"]
    if role == "user":
        results = [block for block in blocks if block.type == "tool_result"]
        told = [{"role": "tool", "tool_call_id": block.tool_use_id, "content": block.content} for block in results]
        return [*told, {"role": "user", "content": "\n".join(texts)}] if texts else told
    thoughts = [block.thinking for block in blocks if block.type == "thinking"]
    calls = [
        {"id": block.id, **function_json(name=block.name, arguments=json.dumps(block.input, ensure_ascii=False))}
        for block in blocks
        if block.type == "tool_use"
    ]
    content, reasoning = "\n".join(texts), "\n".join(thoughts)
    return [{"role": role, "content": content, "reasoning_content": reasoning, "tool_calls": calls}]


# The blocks, by what is added to them: how they begin, and the type of their additions with the name of its text.
_BLOCKS: dict[str, tuple[Json, str, str]] = {
    "content": ({"type": "text", "text": ""}, "text_delta", "text"),
    "reasoning": ({"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking"),
    "call": ({"type": "tool_use", "input": {}}, "input_json_delta", "partial_json"),
}


def _event(kind: str, **fields: Any) -> bytes:
    return frame({"type": kind, **fields}, event=kind)


class _AnthropicShape(Shape):
    """The shape of /v1/messages. name: the model's. n_prompt: tokens of the prompt."""

    keep_alive = _event("ping")

    def __init__(self, name: str, n_prompt: int) -> None:
        self._n_prompt = n_prompt
        self._head: Json = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": name,
        }
        self._index = -1  # of the latest block
        self._open: tuple[str, int] | None = None  # which part the open block is, as `Delta.part` has it

    def whole(self, answers: Sequence[Answer]) -> Json:
        content = content_json(answers[0].deltas)
        return {**self._head, "content": content, **_stop_json(answers[0]), "usage": _usage_json(answers[0].ended)}

    def begin(self) -> Iterator[bytes]:
        usage = {"input_tokens": self._n_prompt, "output_tokens": 0}
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=message)
        yield self.keep_alive

    def added(self, addition: Answer) -> Iterator[bytes]:
        for delta in addition.deltas:
            if delta.part != self._open:
                yield from self._close()
                self._index += 1
                self._open = delta.part
                yield _event("content_block_start", index=self._index, content_block=_begun(delta))
            if delta.text:
                _, kind, name = _BLOCKS[delta.part[0]]
                yield _event("content_block_delta", index=self._index, delta={"type": kind, name: delta.text})
        if addition.completion:
            yield from self._close()
            yield _event("message_delta", delta=_stop_json(addition), usage=_usage_json(addition.completion))
            yield _event("message_stop")

    def failure(self, error: ApiError) -> bytes:
        return frame(error.as_anthropic(), event="error")

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            yield _event("content_block_stop", index=self._index)
        self._open = None


def content_json(deltas: Sequence[Delta]) -> list[Json]:
    """The blocks of an answer."""
    blocks = []
    for delta in whole_parts(deltas):
        _, _, name = _BLOCKS[delta.part[0]]
        blocks.append(_begun(delta) | ({"input": arguments_of(delta.text)} if delta.call else {name: delta.text}))
    return blocks


def _begun(delta: Delta) -> Json:
    """The block that begins with an addition, without its text."""
    begin, _, _ = _BLOCKS[delta.part[0]]
    return begin | ({"id": delta.call.id, "name": delta.call.name} if delta.call else {})


def _usage_json(completion: Completion) -> dict[str, int]:
    """Numbers of tokens. Anthropic does not count those of the cache as input."""
    cached = cached_tokens(completion.statistics)
    return {
        "input_tokens": completion.statistics.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": len(completion.token_ids),
    }


def _stop_json(answer: Answer) -> dict[str, str | None]:
    """Why an answer ended, and which stop text ended it."""
    stop = answer.stopped_by
    return {"stop_reason": "stop_sequence" if stop else _STOPS[answer.finish or "stop"], "stop_sequence": stop}

from __future__ import annotations

from typing import Any

import anthropic
from asking import (
    ASK,
    CALLED,
    FREE,
    GREETING,
    LONG,
    MODEL,
    PARAMETERS,
    SCRIPTED,
    TOLD,
    Report,
    check,
    equal,
    fails,
    is_call,
)

scripted, free = (
    anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0) for url in (SCRIPTED, FREE)
)
MESSAGES: Any = [{"role": "user", "content": ASK}]
TOOLS: Any = [{"name": "weather", "input_schema": PARAMETERS}]
# Its `parse` takes bounds out of the schema.
FORMAT: Any = {"format": {"type": "json_schema", "schema": Report.model_json_schema()}}
ASKED: Any = {"model": MODEL, "max_tokens": 600, "messages": MESSAGES}


def hello() -> None:
    message = scripted.messages.create(**ASKED)
    equal([block.type for block in message.content], ["thinking", "text"])
    equal(message.content[-1].text, GREETING)


def stream() -> None:
    with scripted.messages.stream(**ASKED) as pieces:
        equal("".join(pieces.text_stream), GREETING)


def tool_streamed() -> None:
    with scripted.messages.stream(**ASKED, tools=TOOLS) as pieces:
        message = pieces.get_final_message()
    equal(message.content[-1].input, CALLED)
    result = {"type": "tool_result", "tool_use_id": message.content[-1].id, "content": "rain"}
    talk = [*MESSAGES, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    equal(scripted.messages.create(**{**ASKED, "messages": talk}, tools=TOOLS).content[-1].text, TOLD)


def tool_forced() -> None:
    call: Any = free.messages.create(**ASKED, tools=TOOLS, tool_choice={"type": "any"}).content[0]
    is_call(call.name, call.input)


def structured() -> None:
    message: Any = free.messages.create(**ASKED, output_config=FORMAT)
    Report.model_validate_json(message.content[-1].text)


def tools_and_format() -> None:
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    message: Any = free.messages.create(**ASKED, output_config=FORMAT, tools=TOOLS, tool_choice=choice)
    last = message.content[-1]
    assert last.type == "tool_use" or Report.model_validate_json(last.text)


def error() -> None:
    long: Any = {**ASKED, "messages": [{"role": "user", "content": LONG}]}
    fails(anthropic.BadRequestError, lambda: scripted.messages.create(**long), "prompt is too long")


check(hello, stream, tool_streamed, tool_forced, structured, tools_and_format, error)

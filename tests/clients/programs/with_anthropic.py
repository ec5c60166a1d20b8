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
    assert free.messages.parse(**ASKED, output_format=Report).parsed_output


def tools_and_format() -> None:
    message = free.messages.parse(**ASKED, output_format=Report, tools=TOOLS)
    assert message.parsed_output or message.content[0].type == "tool_use"


def error() -> None:
    long: Any = {**ASKED, "messages": [{"role": "user", "content": LONG}]}
    fails(anthropic.BadRequestError, lambda: scripted.messages.create(**long), "prompt is too long")


check(hello, stream, tool_streamed, tool_forced, structured, tools_and_format, error)

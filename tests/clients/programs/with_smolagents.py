from __future__ import annotations

import json
from typing import Any

from asking import ASK, CALLED, FREE, GREETING, LONG, MODEL, SCRIPTED, Report, check, equal, fails, is_call
from smolagents import ChatMessage, MessageRole, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import agglomerate_stream_deltas

MESSAGES: Any = [ChatMessage(MessageRole.USER, [{"type": "text", "text": ASK}])]
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "report", "schema": Report.model_json_schema()}}


@tool
def weather(city: str, days: int) -> str:
    """Tells it.

    Args:
        city: where
        days: how many
    """
    return f"rain in {city} for {days} days"


def model(url: str) -> OpenAIModel:
    return OpenAIModel(MODEL, api_base=url, api_key="none", client_kwargs={"max_retries": 0})


def hello() -> None:
    equal(model(SCRIPTED).generate(MESSAGES).content, GREETING)


def stream() -> None:
    equal(agglomerate_stream_deltas(list(model(SCRIPTED).generate_stream(MESSAGES))).content, GREETING)


def tool_streamed() -> None:
    pieces = model(SCRIPTED).generate_stream(MESSAGES, tools_to_call_from=[weather], tool_choice="auto")
    call = agglomerate_stream_deltas(list(pieces)).tool_calls[0].function
    equal((call.name, json.loads(call.arguments)), ("weather", CALLED))


def tool_forced() -> None:
    call = model(FREE).generate(MESSAGES, tools_to_call_from=[weather]).tool_calls[0].function
    is_call(call.name, call.arguments)


def agent() -> None:
    ToolCallingAgent([weather], model(FREE), max_steps=1).run(ASK)


def structured() -> None:
    Report.model_validate_json(model(FREE).generate(MESSAGES, response_format=FORMAT).content)


def tools_and_format() -> None:
    message = model(FREE).generate(
        MESSAGES, response_format=FORMAT, tools_to_call_from=[weather], tool_choice="auto", parallel_tool_calls=False
    )
    assert message.tool_calls or Report.model_validate_json(message.content)


def error() -> None:
    long: Any = [ChatMessage(MessageRole.USER, [{"type": "text", "text": LONG}])]
    fails(Exception, lambda: model(SCRIPTED).generate(long), "maximum context length")


check(hello, stream, tool_streamed, tool_forced, agent, structured, tools_and_format, error)

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import openai
from asking import ASK, CALLED, FREE, GREETING, LONG, MODEL, SCRIPTED, TOLD, Report, check, equal, fails, is_call
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def weather(city: str, days: int) -> str:
    """Tells it."""
    return f"rain in {city} for {days} days"


def model(url: str, **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=url, model=MODEL, max_retries=0, **fields)


def with_both(case: Any) -> Any:
    """The case with /v1/chat/completions and with /v1/responses."""

    def both() -> None:
        case(False)
        case(True)

    both.__name__ = case.__name__
    return both


@with_both
def hello(is_new: bool) -> None:
    equal(model(SCRIPTED, use_responses_api=is_new).invoke(ASK).text, GREETING)


@with_both
def stream(is_new: bool) -> None:
    equal("".join(piece.text for piece in model(SCRIPTED, use_responses_api=is_new).stream(ASK)), GREETING)


@with_both
def tool_streamed(is_new: bool) -> None:
    bound = model(SCRIPTED, use_responses_api=is_new).bind_tools([weather])
    message: Any = reduce(add, bound.stream(ASK))
    equal(message.tool_calls[0]["args"], CALLED)
    result = ToolMessage("rain", tool_call_id=message.tool_calls[0]["id"])
    equal(bound.invoke([HumanMessage(ASK), message, result]).text, TOLD)


@with_both
def tool_forced(is_new: bool) -> None:
    for choice in ("any", "weather"):
        bound = model(FREE, use_responses_api=is_new).bind_tools([weather], tool_choice=choice)
        call = bound.invoke(ASK).tool_calls[0]
        is_call(call["name"], call["args"])


@with_both
def structured(is_new: bool) -> None:
    methods: Any = ["json_schema", "function_calling"]
    for method in methods:
        bound = model(FREE, use_responses_api=is_new).with_structured_output(Report, method=method)
        assert isinstance(bound.invoke(ASK), Report)


@with_both
def tools_and_format(is_new: bool) -> None:
    asking = model(FREE, use_responses_api=is_new)
    bound = asking.bind_tools([weather], response_format=Report, strict=True, parallel_tool_calls=False)
    message: Any = bound.invoke(ASK)
    assert message.tool_calls or message.additional_kwargs.get("parsed")


@with_both
def error(is_new: bool) -> None:
    asking = model(SCRIPTED, use_responses_api=is_new)
    fails(openai.BadRequestError, lambda: asking.invoke(LONG), "maximum context length")


@with_both
def earlier_response(is_new: bool) -> None:
    if is_new:
        asking = model(SCRIPTED, use_responses_api=True, use_previous_response_id=True)
        first = asking.invoke(ASK)
        equal(asking.invoke([HumanMessage(ASK), first, HumanMessage("And now?")]).text, GREETING)


check(hello, stream, tool_streamed, tool_forced, structured, tools_and_format, error, earlier_response)

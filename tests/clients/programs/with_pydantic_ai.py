from __future__ import annotations

from contextlib import suppress
from typing import Any

from asking import ASK, FREE, GREETING, LONG, MODEL, SCRIPTED, TOLD, Report, check, equal, fails
from pydantic_ai import Agent, NativeOutput, ToolOutput, UsageLimits
from pydantic_ai.exceptions import ModelHTTPError, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def weather(city: str, days: int) -> str:
    """Tells it."""
    return f"rain in {city} for {days} days"


def agents(url: str, **fields: Any) -> list[Agent[None, Any]]:
    """An agent that asks /v1/chat/completions, and one that asks /v1/responses."""
    provider = OpenAIProvider(base_url=url, api_key="none")
    kinds = (OpenAIChatModel, OpenAIResponsesModel)
    return [Agent(kind(MODEL, provider=provider), **fields) for kind in kinds]


def hello() -> None:
    for agent in agents(SCRIPTED):
        equal(agent.run_sync(ASK).output, GREETING)


async def stream() -> None:
    for agent in agents(SCRIPTED):
        async with agent.run_stream(ASK) as result:
            equal([text async for text in result.stream_text()][-1], GREETING)


async def tool_streamed() -> None:
    for agent in agents(SCRIPTED, tools=[weather]):
        async with agent.run_stream(ASK) as result:
            await result.get_output()
        equal((await agent.run(ASK)).output, TOLD)


def tool_forced() -> None:
    for agent in agents(FREE, output_type=ToolOutput(Report)):
        assert isinstance(agent.run_sync(ASK).output, Report)


def structured() -> None:
    for agent in agents(FREE, output_type=NativeOutput(Report)):
        assert isinstance(agent.run_sync(ASK).output, Report)


def tools_and_format() -> None:
    for agent in agents(
        FREE, output_type=NativeOutput(Report), tools=[weather], model_settings={"parallel_tool_calls": False}
    ):
        # The model calls the tool again and again, which is a right answer.
        with suppress(UsageLimitExceeded):
            assert isinstance(agent.run_sync(ASK, usage_limits=UsageLimits(request_limit=4)).output, Report)


def error() -> None:
    for agent in agents(SCRIPTED):
        fails(ModelHTTPError, lambda agent=agent: agent.run_sync(LONG), "maximum context length")


check(hello, stream, tool_streamed, tool_forced, structured, tools_and_format, error)

from __future__ import annotations

from contextlib import suppress
from typing import Any

import openai
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from asking import ASK, FREE, GREETING, LONG, MODEL, SCRIPTED, TOLD, Report, check, equal


@function_tool
def weather(city: str, days: int) -> str:
    """Tells it."""
    return f"rain in {city} for {days} days"


def agents(url: str, **fields: Any) -> list[Agent[None]]:
    client = openai.AsyncOpenAI(base_url=url, max_retries=0)
    kinds = (OpenAIChatCompletionsModel, OpenAIResponsesModel)
    return [Agent("a", model=kind(MODEL, client), instructions="Be brief.", **fields) for kind in kinds]


async def hello() -> None:
    for agent in agents(SCRIPTED):
        first = await Runner.run(agent, ASK)
        equal(first.final_output, GREETING)
        talk = [*first.to_input_list(), {"role": "user", "content": "And now?"}]
        equal((await Runner.run(agent, talk)).final_output, GREETING)


async def stream() -> None:
    for agent in agents(SCRIPTED):
        result = Runner.run_streamed(agent, ASK)
        async for _ in result.stream_events():
            pass
        equal(result.final_output, GREETING)


async def tool_streamed() -> None:
    for agent in agents(SCRIPTED, tools=[weather]):
        result = Runner.run_streamed(agent, ASK)
        async for _ in result.stream_events():
            pass
        equal(result.final_output, TOLD)


async def tool_forced() -> None:
    for choice in ("required", "weather"):
        settings = ModelSettings(tool_choice=choice)
        for agent in agents(FREE, tools=[weather], model_settings=settings, tool_use_behavior="stop_on_first_tool"):
            assert str((await Runner.run(agent, ASK)).final_output).startswith("rain in")


async def structured() -> None:
    for agent in agents(FREE, output_type=Report):
        assert isinstance((await Runner.run(agent, ASK)).final_output, Report)


async def tools_and_format() -> None:
    for agent in agents(
        FREE, output_type=Report, tools=[weather], model_settings=ModelSettings(parallel_tool_calls=False)
    ):
        # The model calls the tool again and again, which is a right answer.
        with suppress(MaxTurnsExceeded):
            assert isinstance((await Runner.run(agent, ASK, max_turns=4)).final_output, Report)


async def earlier_response() -> None:
    agent = agents(SCRIPTED, tools=[weather])[1]
    first = await Runner.run(agent, ASK, auto_previous_response_id=True)
    equal(first.final_output, TOLD)
    second = await Runner.run(agent, "And now?", previous_response_id=first.last_response_id)
    equal(second.final_output, TOLD)


async def error() -> None:
    for agent in agents(SCRIPTED):
        told = "no error"
        try:
            await Runner.run(agent, LONG)
        except openai.BadRequestError as refusal:
            told = str(refusal)
        assert "maximum context length" in told, told


check(hello, stream, tool_streamed, tool_forced, structured, tools_and_format, earlier_response, error)

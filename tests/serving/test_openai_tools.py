"""The real client of OpenAI: streamed calls of tools, and answers parsed into classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pydantic
import pytest

from specrun.catalog import embedded
from specrun.speculation.method import OFF
from tests.models import CHAT_TEMPLATE, edited, scripted_llama
from tests.serving.running import NAME, running
from tests.serving.templates import QWEN3
from tests.serving.test_tools import CALL_PIECES, END_PIECES, TOOLS

if TYPE_CHECKING:  # in every test process it would take a second
    import openai

ASK: list[Any] = [{"role": "user", "content": "Weather in Oslo?"}]


class Report(pydantic.BaseModel):
    city: Literal["Oslo", "Rome"]
    days: int
    notes: list[Literal["rain", "sun"]]


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[openai.OpenAI]:
    """A client of a server whose model says something and calls a tool."""
    import openai

    file = scripted_llama(tmp_path / "q.gguf", [b"I look.", *CALL_PIECES, *END_PIECES], metadata={CHAT_TEMPLATE: QWEN3})
    with (
        running(file, plan=OFF.plan()) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.slow
def test_a_call_is_streamed(tools: openai.OpenAI) -> None:
    with tools.chat.completions.stream(model=NAME, messages=ASK, tools=TOOLS, max_tokens=64) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert events.count("tool_calls.function.arguments.delta") >= 2
    (choice,) = final.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    (call,) = choice.message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Oslo", "days": 3}')


def allowed(mode: str, *names: str) -> Any:
    named = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}


@pytest.mark.slow
def test_only_allowed_tools_are_called(tools: openai.OpenAI) -> None:
    import openai

    def answer(tools_given: Any, choice: Any) -> Any:
        given: Any = {"messages": ASK, "tools": tools_given, "tool_choice": choice, "max_tokens": 64}
        return tools.chat.completions.create(model=NAME, **given)

    weather, clock = TOOLS
    some, alone = answer(TOOLS, allowed("auto", "weather")), answer([weather], "auto")
    assert some.usage.prompt_tokens == alone.usage.prompt_tokens < answer(TOOLS, "auto").usage.prompt_tokens
    assert [call.function.name for call in some.choices[0].message.tool_calls] == ["weather"]
    forced = answer(TOOLS, allowed("required", "clock"))
    assert [call.function.name for call in forced.choices[0].message.tool_calls] == ["clock"]
    for choice in (allowed("auto", "lamp"), allowed("auto"), allowed("never", "clock"), {"type": "allowed_tools"}):
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            answer([weather, clock], choice)


@pytest.mark.slow
def test_an_answer_is_parsed_into_a_class(tmp_path: Path) -> None:
    import openai

    file = edited(tmp_path / "pair.gguf", embedded.TARGET, {CHAT_TEMPLATE: QWEN3})
    with running(file) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.parse(
            model=NAME, messages=ASK, response_format=Report, max_tokens=400, seed=1, temperature=0.8
        )
    assert isinstance(answer.choices[0].message.parsed, Report)

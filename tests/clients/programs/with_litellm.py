from __future__ import annotations

import json
from typing import Any

import litellm
from asking import ASK, CALLED, FREE, GREETING, LONG, PARAMETERS, SCRIPTED, Report, check, equal, fails, is_call

MESSAGES: Any = [{"role": "user", "content": ASK}]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]


def ask(url: str = SCRIPTED, **fields: Any) -> Any:
    asked = {"model": "openai/small", "api_base": url, "api_key": "none", "messages": MESSAGES, "num_retries": 0}
    return litellm.completion(**{**asked, **fields})


def hello() -> None:
    message = ask().choices[0].message
    equal((message.content, message.reasoning_content), (GREETING, "hm"))


def stream() -> None:
    equal("".join(piece.choices[0].delta.content or "" for piece in ask(stream=True)), GREETING)


def tool_streamed() -> None:
    whole = litellm.stream_chunk_builder(list(ask(tools=TOOLS, stream=True)))
    equal(json.loads(whole.choices[0].message.tool_calls[0].function.arguments), CALLED)


def tool_forced() -> None:
    call = ask(FREE, tools=TOOLS, tool_choice="required").choices[0].message.tool_calls[0].function
    is_call(call.name, call.arguments)


def structured() -> None:
    Report.model_validate_json(ask(FREE, response_format=Report).choices[0].message.content)


def tools_and_format() -> None:
    message = ask(FREE, response_format=Report, tools=TOOLS, parallel_tool_calls=False).choices[0].message
    assert message.tool_calls or Report.model_validate_json(message.content)


def error() -> None:
    long = [{"role": "user", "content": LONG}]
    fails(litellm.ContextWindowExceededError, lambda: ask(messages=long), "maximum context length")


def responses() -> None:
    asked: Any = {"model": "openai/small", "api_base": SCRIPTED, "api_key": "none", "input": ASK}
    equal(litellm.responses(**asked).output[-1].content[0].text, GREETING)
    kinds = [str(getattr(event.type, "value", event.type)) for event in litellm.responses(**asked, stream=True)]
    equal((kinds[0], kinds[-1]), ("response.created", "response.completed"))


def anthropic_model() -> None:
    url = SCRIPTED.removesuffix("/v1")
    equal(ask(url, model="anthropic/small").choices[0].message.content, GREETING)


check(hello, stream, tool_streamed, tool_forced, structured, tools_and_format, error, responses, anthropic_model)

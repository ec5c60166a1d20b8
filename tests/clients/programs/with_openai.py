from __future__ import annotations

from typing import Any

import openai
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

scripted, free = (openai.OpenAI(base_url=url, max_retries=0) for url in (SCRIPTED, FREE))
MESSAGES: Any = [{"role": "user", "content": ASK}]
FUNCTION: Any = {"name": "weather", "parameters": PARAMETERS, "strict": True}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
FLAT: Any = [{"type": "function", **FUNCTION}]
ONE: Any = {"parallel_tool_calls": False}  # the model would not end by itself
chat, responses = scripted.chat.completions, scripted.responses


def hello() -> None:
    equal(chat.create(model=MODEL, messages=MESSAGES).choices[0].message.content, GREETING)


def stream() -> None:
    with chat.stream(model=MODEL, messages=MESSAGES) as pieces:
        equal(pieces.get_final_completion().choices[0].message.content, GREETING)


def tool_streamed() -> None:
    with chat.stream(model=MODEL, messages=MESSAGES, tools=TOOLS) as pieces:
        message = pieces.get_final_completion().choices[0].message
    call = message.tool_calls[0]
    equal(call.function.parsed_arguments, CALLED)
    talk = [
        *MESSAGES,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    equal(chat.create(model=MODEL, messages=talk, tools=TOOLS).choices[0].message.content, TOLD)


def tool_forced() -> None:
    answer = free.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required")
    call = answer.choices[0].message.tool_calls[0].function
    is_call(call.name, call.arguments)


def structured() -> None:
    answer = free.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Report)
    assert answer.choices[0].message.parsed


def tools_and_format() -> None:
    asked: Any = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "response_format": Report, **ONE}
    message = free.chat.completions.parse(**asked).choices[0].message
    assert message.tool_calls or message.parsed


def error() -> None:
    long: Any = [{"role": "user", "content": LONG}]
    fails(openai.BadRequestError, lambda: chat.create(model=MODEL, messages=long), "maximum context length is 4096")


def responses_hello() -> None:
    equal(responses.create(model=MODEL, input=ASK).output_text, GREETING)


def responses_stream() -> None:
    with responses.stream(model=MODEL, input=ASK) as events:
        kinds = [event.type for event in events]
        equal(events.get_final_response().output_text, GREETING)
    equal([kinds[0], kinds[-1]], ["response.created", "response.completed"])


def responses_tool_streamed() -> None:
    with responses.stream(model=MODEL, input=ASK, tools=FLAT) as events:
        for _ in events:
            pass
        final = events.get_final_response()
    call = final.output[-1]
    equal(call.parsed_arguments, CALLED)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    following = responses.create(model=MODEL, previous_response_id=final.id, input=[result], tools=FLAT)
    equal(following.output_text, TOLD)


def responses_tool_forced() -> None:
    choice: Any = {"type": "function", "name": "weather"}
    (call,) = free.responses.create(model=MODEL, input=ASK, tools=FLAT, tool_choice=choice).output
    is_call(call.name, call.arguments)


def responses_structured() -> None:
    assert free.responses.parse(model=MODEL, input=ASK, text_format=Report).output_parsed


def responses_tools_and_format() -> None:
    asked: Any = {"model": MODEL, "input": ASK, "tools": FLAT, "text_format": Report, **ONE}
    answer = free.responses.parse(**asked)
    assert answer.output_parsed or answer.output[-1].type == "function_call"


def responses_error() -> None:
    fails(openai.BadRequestError, lambda: responses.create(model=MODEL, input=LONG), "maximum context length is 4096")


check(
    hello,
    stream,
    tool_streamed,
    tool_forced,
    structured,
    tools_and_format,
    error,
    responses_hello,
    responses_stream,
    responses_tool_streamed,
    responses_tool_forced,
    responses_structured,
    responses_tools_and_format,
    responses_error,
)

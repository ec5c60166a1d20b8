from __future__ import annotations

from typing import Any

import instructor
import openai
from asking import ASK, FREE, LONG, MODEL, Report, check, fails

MESSAGES: Any = [{"role": "user", "content": ASK}]
client = openai.OpenAI(base_url=FREE, max_retries=0)


def ask(mode: instructor.Mode, **fields: Any) -> Any:
    patched = instructor.from_openai(client, mode=mode)
    asked = {"model": MODEL, "messages": MESSAGES, "response_model": Report, "max_retries": 0}
    return patched.chat.completions.create(**{**asked, **fields})


def tool_forced() -> None:
    assert isinstance(ask(instructor.Mode.TOOLS), Report)


def structured() -> None:
    assert isinstance(ask(instructor.Mode.JSON_SCHEMA), Report)


def stream() -> None:
    patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    *_, last = patched.chat.completions.create_partial(model=MODEL, messages=MESSAGES, response_model=Report)
    Report.model_validate(last.model_dump())


def tool_streamed() -> None:
    patched = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    *_, last = patched.chat.completions.create_partial(model=MODEL, messages=MESSAGES, response_model=Report)
    Report.model_validate(last.model_dump())


def responses() -> None:
    assert isinstance(ask(instructor.Mode.RESPONSES_TOOLS), Report)


def error() -> None:
    long = [{"role": "user", "content": LONG}]
    fails(Exception, lambda: ask(instructor.Mode.TOOLS, messages=long), "maximum context length")


check(tool_forced, structured, stream, tool_streamed, responses, error)

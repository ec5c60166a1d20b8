from __future__ import annotations

import openai
import outlines
from asking import ASK, FREE, GREETING, LONG, MODEL, SCRIPTED, Report, check, equal, fails

scripted, free = (outlines.from_openai(openai.OpenAI(base_url=url, max_retries=0), MODEL) for url in (SCRIPTED, FREE))


def hello() -> None:
    equal(scripted(ASK), GREETING)


def stream() -> None:
    equal("".join(scripted.stream(ASK)), GREETING)


def structured() -> None:
    Report.model_validate_json(free(ASK, Report))
    Report.model_validate_json("".join(free.stream(ASK, Report)))


def error() -> None:
    fails(Exception, lambda: scripted(LONG), "maximum context length")


check(hello, stream, structured, error)

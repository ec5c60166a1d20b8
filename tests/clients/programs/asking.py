"""What all programs here ask, and how they tell what came of it. Run in an environment of their own, without specrun.

Arguments: the address of a server that greets, or calls `weather` where it has tools and then says "It rains.", and
that of one that writes whatever a grammar allows. Each program prints a JSON object: case -> what went wrong, or null.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, Field

SCRIPTED, FREE = (f"{url}/v1" for url in sys.argv[1:3])
MODEL = "small"
ASK = "What is the weather in Oslo?"
GREETING, CALLED, TOLD = "Hello there.", {"city": "Oslo", "days": 3}, "It rains."
LONG = "a b " * 6000


class Report(BaseModel):
    """A schema with the bounds that people write."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)
    share: float = Field(ge=0, le=1)
    tags: list[Literal["rain", "sun"]] = Field(max_length=2)


PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


def check(*cases: Callable[[], Any]) -> None:
    """Run all cases, and tell what went wrong in each."""
    told: dict[str, str | None] = {}
    for case in cases:
        try:
            result = case()
            if inspect.isawaitable(result):
                asyncio.run(_awaited(result))
            told[case.__name__] = None
        except BaseException as error:
            told[case.__name__] = "".join(traceback.format_exception_only(error))[:1500]
    print()
    print(json.dumps(told))


async def _awaited(result: Any) -> None:
    await result


def equal(found: Any, wanted: Any) -> None:
    assert found == wanted, f"{found!r} instead of {wanted!r}"


def is_call(name: str, arguments: Any) -> None:
    """Whether a call is one that the declared tool allows."""
    equal(name, "weather")
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    equal(set(value), {"city", "days"})


def fails(kind: Any, ask: Callable[[], Any], words: str) -> None:
    """A request must fail in this way, and say why."""
    try:
        ask()
    except kind as error:
        told = str(error)
    else:
        told = "no error"
    assert words in told, told

"""What a request brings: a JSON object, read within bounds of size, depth and time, and the models of its fields."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WrapValidator, model_validator
from starlette.requests import ClientDisconnect, Request

from specrun.locations import decode, encode, given_json
from specrun.serving.api_error import TIMED_OUT, TOO_LARGE, ApiError, refused

MOST_BYTES = 16 * 2**20  # conversations of a million tokens are a fraction of it
MOST_SECONDS = 60.0

_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # half of a surrogate pair, as JSON can escape it

# Sentences that are plainer than pydantic's, by its types of errors.
_SENTENCES = {
    "missing": "is missing",
    "model_type": "must be an object",
    "is_instance_of": "must be an object",
    "list_type": "must be a list",
    "bool_type": "must be true or false",
}


class Fields(BaseModel):
    """Fields of a JSON object. Null is the same as absence, and fields without a name here are ignored.

    Only strings are strings and only booleans are booleans: pydantic converts nothing.
    """

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


Model = TypeVar("Model", bound=Fields)


# JSON has one kind of numbers, and some clients write 1.0.
Integer = Annotated[
    int, BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
]


def must(be: str) -> WrapValidator:
    """For a field that has a single message, "FIELD must ...", for everything that can be wrong in its value."""

    def check(value: Any, inner: Callable[[Any], Any]) -> Any:
        try:
            return inner(value)
        except ValidationError as error:
            if any(part["type"] == "value_error" for part in error.errors()):
                raise  # a part of the value has a message of its own
            raise ValueError(f"must {be}") from None

    return WrapValidator(check)


def parsed(model: type[Model], values: Any, path: str = "") -> Model:
    """The fields of an object at `path` of the request. Raises ApiError, which names the first wrong field."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        param = path
        for part in first["loc"]:
            param += f"[{part}]" if isinstance(part, int) else f"{'.' if param else ''}{part}"
        why = re.sub(r"^(Value error,|Input|List) | after validation", "", first["msg"])
        raise refused(param, _SENTENCES.get(first["type"], why)) from None


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings. Raises ApiError for anything else, too large or too slow bodies."""
    try:
        data = await asyncio.wait_for(_read(request), MOST_SECONDS)
    except asyncio.TimeoutError:
        raise ApiError(f"the body was not complete after {MOST_SECONDS:.0f} s", TIMED_OUT) from None
    except ClientDisconnect:
        raise ApiError("the body is not complete") from None
    text = decode(data, "the body", ApiError)
    value = given_json(text, "the body", ApiError)
    if not isinstance(value, dict):
        raise ApiError("the body must be a JSON object")
    if _HALF.search(text):  # it may be beside its other half
        encode(json.dumps(value, ensure_ascii=False), "the body", ApiError)
    return value


async def _read(request: Request) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BYTES:
            close = {"Connection": "close"}  # the rest of the body is not read, so nothing else can follow
            raise ApiError(f"the body is larger than {MOST_BYTES >> 20} MiB", TOO_LARGE, headers=close)
    return bytes(data)

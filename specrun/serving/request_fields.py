"""What a request brings: a JSON object, read within bounds of size, depth and time, the models of its fields, and the
fields that every endpoint has: sampling, length, stop texts, and how answers are sent.

The names are OpenAI's and llama-server's. A field that is absent takes the value that `specrun serve` was started with.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    WrapValidator,
    create_model,
    model_validator,
)
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from specrun.decoding.generation import Request
from specrun.errors import UsageError
from specrun.locations import decode, encode, given_json
from specrun.options.sampling_options import NO_LIMIT, RANDOM_SEED, settled_bias, settled_seed
from specrun.sampling import SamplingParameters
from specrun.sampling.adjustments import MAX_SEED
from specrun.serving.refusals import TIMED_OUT, TOO_LARGE, ApiError, refused

Json = dict[str, Any]  # an object

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


async def read_json(request: HttpRequest) -> Json:
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


async def _read(request: HttpRequest) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BYTES:
            close = {"Connection": "close"}  # the rest of the body is not read, so nothing else can follow
            raise ApiError(f"the body is larger than {MOST_BYTES >> 20} MiB", TOO_LARGE, headers=close)
    return bytes(data)


MOST_ANSWERS = 16
MOST_LOGPROBS = 20  # likeliest tokens beside each written token; OpenAI's bound
_MOST_STOPS = 64
_LONGEST_STOP = 1024  # characters
_MOST_BIASES = 1024
_MOST_TOKENS = 2**31 - 1

# The lowest and the highest number that a request may give. SamplingParameters may allow less.
_BOUNDS = {float: (-100.0, 100.0), int: (-1, _MOST_TOKENS)}  # far beyond what gives text
_OWN_BOUNDS = {"repeat_penalty": (0.01, 100.0), "seed": (RANDOM_SEED, MAX_SEED)}
# What some numbers mean: -1 is no bound, and a top_p of 0, which leaves no token, is the likeliest token for llama.cpp.
_MEANINGS: dict[tuple[str, Any], Any] = {("top_k", -1): 0, ("repeat_last_n", -1): _MOST_TOKENS, ("top_p", 0): 1e-9}


# A field for each number of SamplingParameters.
_sampling_fields: dict[str, Any] = {}
for _name, _kind in get_type_hints(SamplingParameters).items():
    if _kind in _BOUNDS:
        _low, _high = _OWN_BOUNDS.get(_name, _BOUNDS[_kind])
        _sampling_fields[_name] = (Integer if _kind is int else float, Field(None, ge=_low, le=_high))
_SamplingFields = create_model("_SamplingFields", __base__=Fields, **_sampling_fields)


_TokenId = Annotated[
    int,
    BeforeValidator(lambda key: int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 10 else key),
    Field(ge=0),
]
_Bias = Annotated[
    float,
    Field(allow_inf_nan=True, ge=-math.inf),  # NaN is not
    BeforeValidator(lambda bias: -math.inf if bias is False else bias),
    AfterValidator(settled_bias),
]
_Biases = Annotated[
    list[Annotated[tuple[_TokenId, _Bias], Strict(False)]],
    Field(max_length=_MOST_BIASES, fail_fast=True),
    BeforeValidator(lambda biases: list(biases.items()) if isinstance(biases, dict) else biases),
    must(f"have at most {_MOST_BIASES} ids of tokens, from 0 on, each with its bias: a number, or false"),
]


_Stops = Annotated[
    list[Annotated[str, Field(max_length=_LONGEST_STOP)]],
    Field(max_length=_MOST_STOPS, fail_fast=True),
    BeforeValidator(lambda stops: [stops] if isinstance(stops, str) else stops),
    must(f"be a string or a list of at most {_MOST_STOPS} strings, each of at most {_LONGEST_STOP} characters"),
]


def _limit(max_tokens: int) -> int:
    if max_tokens == 0:
        raise ValueError("must be 1 or more (-1 is no limit); it is 0")
    return max_tokens


class _LengthFields(Fields):
    max_tokens: Annotated[Integer, Field(ge=NO_LIMIT, le=_MOST_TOKENS), AfterValidator(_limit)] | None = Field(
        None, validation_alias=AliasChoices("max_completion_tokens", "max_tokens", "n_predict")
    )
    stop: _Stops = Field([])
    ignore_eos: bool = False
    logit_bias: _Biases = Field([])


class StreamOptions(Fields):
    include_usage: bool = False  # whether a stream ends with the numbers of tokens


class Sending(Fields):
    """How many answers are sent, and how.

    stream: whether pieces are sent as they are written.
    cache_prompt: False has the prompt split into tokens and read again, whatever was kept of it.
    last_tree: whether each answer comes with its last token tree.
    """

    n: Annotated[Integer, Field(ge=1, le=MOST_ANSWERS)] = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    cache_prompt: bool = True
    last_tree: bool = False


@dataclass(frozen=True)
class Defaults:
    """What absent fields mean. request: without a prompt; its seed is not used. seed: -1 is a random seed each time."""

    request: Request
    seed: int

    def settings(self) -> Json:
        """The same in the names of fields."""
        sampling = self.request.sampling
        numbers = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
        limit = NO_LIMIT if self.request.max_tokens is None else self.request.max_tokens
        return numbers | {"seed": self.seed, "max_tokens": limit, "stop": list(self.request.stops)}


def read_request(body: Json, defaults: Defaults, n_vocab: int) -> Request:
    """The request that a body describes, without a prompt. Raises ApiError for wrong fields.

    n_vocab: tokens that the model has.
    """
    request, given = defaults.request, parsed(_LengthFields, body)
    sampling = replace(request.sampling, seed=settled_seed(defaults.seed))
    for name, value in parsed(_SamplingFields, body).model_dump(exclude_unset=True).items():
        meant: Any = settled_seed(value) if name == "seed" else _MEANINGS.get((name, value), value)
        try:
            sampling = replace(sampling, **{name: meant})
        except UsageError as error:  # it begins with the name of the command's option
            raise refused(name, str(error).partition(" ")[2]) from error
    if "logit_bias" in given.model_fields_set:
        if any(token >= n_vocab for token, _ in given.logit_bias):
            raise refused("logit_bias", f"must be for ids of tokens, from 0 to {n_vocab - 1}")
        sampling = replace(sampling, logit_bias=tuple(given.logit_bias))
    limit = request.max_tokens if given.max_tokens is None else given.max_tokens
    return replace(
        request,
        sampling=sampling,
        max_tokens=None if limit == NO_LIMIT else limit,
        stops=tuple(filter(None, given.stop)) or request.stops,
        ignore_eos=given.ignore_eos,
    )

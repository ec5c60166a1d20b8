"""The fields of a request's JSON that every endpoint has: sampling, length, stop texts, and how answers are sent.

The names are OpenAI's and llama-server's. A field that is absent takes the value that `specrun serve` was started with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, Strict, create_model

from specrun.engine.request import Request
from specrun.errors import UsageError
from specrun.options.sampling_options import NO_LIMIT, RANDOM_SEED, settled_bias, settled_seed
from specrun.sampling import SamplingParameters
from specrun.sampling.parameters import MAX_SEED
from specrun.serving.api_error import refused
from specrun.serving.bodies import Fields, Integer, must, parsed

MOST_ANSWERS = 16
MOST_LOGPROBS = 20  # likeliest tokens beside each written token; OpenAI's bound
_MOST_STOPS = 64
_LONGEST_STOP = 1024  # characters
_MOST_BIASES = 1024
_MOST_TOKENS = 2**31 - 1

# The lowest and the highest number that a request may give. SamplingParameters may allow less.
_BOUNDS = {float: (-100.0, 100.0), int: (-1, _MOST_TOKENS)}  # far beyond what gives text
_OWN_BOUNDS = {"repeat_penalty": (0.01, 100.0), "seed": (RANDOM_SEED, MAX_SEED)}
_WITHOUT_BOUND = {"top_k": 0, "repeat_last_n": _MOST_TOKENS}  # what -1 means
# 0 leaves no token. llama.cpp takes the likeliest token then, and so does this number.
_SMALLEST_TOP_P = 1e-9


def _sampling_fields() -> dict[str, Any]:
    """A field for each number of SamplingParameters."""
    numbers: dict[str, Any] = {}
    for name, kind in get_type_hints(SamplingParameters).items():
        if kind in _BOUNDS:
            low, high = _OWN_BOUNDS.get(name, _BOUNDS[kind])
            numbers[name] = (Integer if kind is int else float, Field(None, ge=low, le=high))
    return numbers


_SamplingFields = create_model("_SamplingFields", __base__=Fields, **_sampling_fields())


def _token_id(key: Any) -> Any:
    """Keys of JSON objects are strings."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 10 else key


def _settled_biases(biases: list[tuple[int, float]]) -> list[tuple[int, float]]:
    if any(math.isnan(bias) for _, bias in biases):
        raise ValueError(f"must {_BIASES}")
    return [(token, settled_bias(bias)) for token, bias in biases]


_BIASES = f"have at most {_MOST_BIASES} ids of tokens, each with its bias: a number, or false"
_TokenId = Annotated[int, BeforeValidator(_token_id), Field(ge=0)]
_Bias = Annotated[float, Field(allow_inf_nan=True), BeforeValidator(lambda bias: -math.inf if bias is False else bias)]
_Biases = Annotated[
    list[Annotated[tuple[_TokenId, _Bias], Strict(False)]],
    Field(max_length=_MOST_BIASES, fail_fast=True),
    BeforeValidator(lambda biases: list(biases.items()) if isinstance(biases, dict) else biases),
    AfterValidator(_settled_biases),
    must(_BIASES),
]


def _short(stops: list[str]) -> list[str]:
    if any(len(stop) > _LONGEST_STOP for stop in stops):
        raise ValueError(f"must {_STOPS}")
    return stops


_STOPS = f"be a string or a list of at most {_MOST_STOPS} strings, each of at most {_LONGEST_STOP} characters"
_Stops = Annotated[
    list[str],
    Field(max_length=_MOST_STOPS, fail_fast=True),
    BeforeValidator(lambda stops: [stops] if isinstance(stops, str) else stops),
    AfterValidator(_short),
    must(_STOPS),
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
    """include_usage: whether a stream ends with the numbers of tokens."""

    include_usage: bool = False


class Streaming(Fields):
    """Whether pieces are sent as they are written."""

    stream: bool = False


class Sending(Streaming):
    """How many answers are sent, and how.

    cache_prompt: False has the prompt split into tokens and read again, whatever was kept of it.
    last_tree: whether each answer comes with its last token tree.
    """

    n: Annotated[Integer, Field(ge=1, le=MOST_ANSWERS)] = 1
    stream_options: StreamOptions = StreamOptions()
    cache_prompt: bool = True
    last_tree: bool = False


@dataclass(frozen=True)
class Defaults:
    """What absent fields mean. request: without a prompt; its seed is not used. seed: -1 is a random seed each time."""

    request: Request
    seed: int

    def settings(self) -> dict[str, Any]:
        """The same in the names of fields."""
        sampling = self.request.sampling
        numbers = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
        limit = NO_LIMIT if self.request.max_tokens is None else self.request.max_tokens
        return numbers | {"seed": self.seed, "max_tokens": limit, "stop": list(self.request.stops)}


def read_request(body: Mapping[str, Any], defaults: Defaults, n_vocab: int) -> Request:
    """The request that a body describes, without a prompt. Raises ApiError for wrong fields.

    n_vocab: tokens that the model has.
    """
    request, given = defaults.request, parsed(_LengthFields, body)
    sampling = replace(request.sampling, seed=settled_seed(defaults.seed))
    for name, value in parsed(_SamplingFields, body).model_dump(exclude_unset=True).items():
        try:
            sampling = replace(sampling, **{name: _settled(name, value)})
        except UsageError as error:  # it begins with the name of the command's option
            raise refused(name, str(error).partition(" ")[2]) from error
    if "logit_bias" in given.model_fields_set:
        if any(token >= n_vocab for token, _ in given.logit_bias):
            raise refused("logit_bias", f"must be for ids of tokens, below {n_vocab}")
        sampling = replace(sampling, logit_bias=tuple(given.logit_bias))
    limit = request.max_tokens if given.max_tokens is None else given.max_tokens
    return replace(
        request,
        sampling=sampling,
        max_tokens=None if limit == NO_LIMIT else limit,
        stops=tuple(filter(None, given.stop)) or request.stops,
        ignore_eos=given.ignore_eos,
    )


def _settled(name: str, value: Any) -> Any:
    """The parameter that a field means."""
    if name == "seed":
        return settled_seed(value)
    if name == "top_p" and value == 0:
        return _SMALLEST_TOP_P
    return _WITHOUT_BOUND.get(name, value) if value == -1 else value

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
# What some numbers mean: -1 is no bound, and a top_p of 0, which leaves no token, is the likeliest token for llama.cpp.
_MEANINGS: dict[tuple[str, Any], Any] = {("top_k", -1): 0, ("repeat_last_n", -1): _MOST_TOKENS, ("top_p", 0): 1e-9}


# A field for each number of SamplingParameters.
_sampling_fields: dict[str, Any] = {}
for _name, _kind in get_type_hints(SamplingParameters).items():
    if _kind in _BOUNDS:
        _low, _high = _OWN_BOUNDS.get(_name, _BOUNDS[_kind])
        _sampling_fields[_name] = (Integer if _kind is int else float, Field(None, ge=_low, le=_high))
_SamplingFields = create_model("_SamplingFields", __base__=Fields, **_sampling_fields)


def _token_id(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 10 else key


_TokenId = Annotated[int, BeforeValidator(_token_id), Field(ge=0)]
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

"""From the fields of a request's JSON to the engine's `Request`: sampling, length and stop texts.

The names are OpenAI's and llama-server's. A field that is absent takes the value that `specrun serve` was started with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from specrun.engine.request import Request
from specrun.options.sampling_options import NO_LIMIT, RANDOM_SEED, settled_bias, settled_seed
from specrun.sampling.parameters import MAX_SEED
from specrun.serving.fields import Fields, is_integer

MOST_STOPS = 64
LONGEST_STOP = 1024  # characters
MOST_LOGPROBS = 20  # likeliest tokens beside each one that is written; OpenAI's bound
_MOST_BIASES = 1024
_MOST_TOKENS = 2**31 - 1
_MAX_TEMPERATURE = 100.0  # far beyond what gives text

# llama.cpp's names, OpenAI's where it has one -> the parameter, its lowest and its highest value
_NUMBERS = {
    "temperature": ("temperature", 0.0, _MAX_TEMPERATURE),
    "top_p": ("top_p", 0.0, 1.0),
    "min_p": ("min_p", 0.0, 1.0),
    "repeat_penalty": ("repeat_penalty", 0.01, 100.0),
    "presence_penalty": ("presence_penalty", -100.0, 100.0),
    "frequency_penalty": ("frequency_penalty", -100.0, 100.0),
}
# What -1 means: no filter, and penalties for the whole text.
_INTEGERS = {"top_k": 0, "repeat_last_n": _MOST_TOKENS}
# What no distribution is left of at 0; llama.cpp takes the likeliest token then, and so does the smallest number here.
_SMALLEST_TOP_P = 1e-9


@dataclass(frozen=True)
class Defaults:
    """What absent fields mean. request: without a prompt; its seed is not used. seed: -1 is another one each time."""

    request: Request
    seed: int


def read_request(fields: Fields, defaults: Defaults, n_vocab: int) -> Request:
    """The request that the fields describe, without a prompt. Raises ApiError for wrong ones.

    n_vocab: tokens that the model has.
    """
    request = defaults.request
    return replace(
        request,
        sampling=replace(request.sampling, **_sampling(fields, defaults.seed, n_vocab)),
        max_tokens=_max_tokens(fields, request.max_tokens),
        stops=_stops(fields) or request.stops,
        ignore_eos=bool(fields.flag("ignore_eos")),
    )


def _sampling(fields: Fields, default_seed: int, n_vocab: int) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, (parameter, low, high) in _NUMBERS.items():
        number = fields.number(name, low, high)
        if number is not None:
            given[parameter] = max(number, _SMALLEST_TOP_P) if parameter == "top_p" else number
    for name, without_bound in _INTEGERS.items():
        integer = fields.integer(name, -1, _MOST_TOKENS)
        if integer is not None:
            given[name] = without_bound if integer == -1 else integer
    seed = fields.integer("seed", RANDOM_SEED, MAX_SEED)
    given["seed"] = settled_seed(default_seed if seed is None else seed)
    if fields.raw("logit_bias") is not None:
        given["logit_bias"] = tuple(_biases(fields, n_vocab))
    return given


def _biases(fields: Fields, n_vocab: int) -> Iterator[tuple[int, float]]:
    """(token id, bias) pairs, from OpenAI's object or llama-server's list. `false` forbids a token."""
    given = fields.raw("logit_bias")
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or len(pairs) > _MOST_BIASES:
        fields.refuse("logit_bias", f"must be an object with at most {_MOST_BIASES} token ids and their biases")
    for pair in pairs:
        token, bias = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)
        if isinstance(token, str) and token.isdecimal() and len(token) < 10:
            token = int(token)
        if not is_integer(token) or not 0 <= token < n_vocab:
            fields.refuse("logit_bias", f"must be for ids of tokens, below {n_vocab}; it has {json.dumps(token)}")
        if bias is False:
            bias = -math.inf
        if isinstance(bias, bool) or not isinstance(bias, int | float) or math.isnan(bias):
            fields.refuse("logit_bias", f"must be numbers, or false; that of {token} is {json.dumps(bias)[:50]}")
        yield token, settled_bias(bias)


def _max_tokens(fields: Fields, default: int | None) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "n_predict"):
        value = fields.integer(name, NO_LIMIT, _MOST_TOKENS)
        if value == 0:
            fields.refuse(name, "must be 1 or more (-1 is no limit); it is 0")
        if value is not None:
            return None if value == NO_LIMIT else value
    return default


def _stops(fields: Fields) -> tuple[str, ...]:
    stop = fields.raw("stop")
    stops = [stop] if isinstance(stop, str) else fields.items("stop", MOST_STOPS)
    if not all(isinstance(one, str) for one in stops):
        fields.refuse("stop", "must be a string or a list of strings")
    if any(len(one) > LONGEST_STOP for one in stops):
        fields.refuse("stop", f"must have at most {LONGEST_STOP} characters in each text")
    return tuple(one for one in stops if one)

"""From the fields of a request's JSON to the engine's `Request`: sampling, length and stop texts.

The names are OpenAI's and llama-server's. A field that is absent takes the value that `specrun serve` was started with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specrun.engine.request import Request
from specrun.options.sampling_options import NO_LIMIT, RANDOM_SEED, settled_seed
from specrun.sampling.parameters import MAX_SEED
from specrun.serving.fields import Fields

MOST_STOPS = 64
LONGEST_STOP = 1024  # characters
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
_INTEGERS = {"top_k": ("top_k", 0, _MOST_TOKENS), "repeat_last_n": ("repeat_last_n", 0, _MOST_TOKENS)}
# What no distribution is left of at 0; llama.cpp takes the likeliest token then, and so does the smallest number here.
_SMALLEST_TOP_P = 1e-9


def read_request(fields: Fields, defaults: Request) -> Request:
    """The request that the fields describe, without a prompt. Raises ApiError for wrong ones."""
    return replace(
        defaults,
        sampling=replace(defaults.sampling, **_sampling(fields, defaults)),
        max_tokens=_max_tokens(fields, defaults.max_tokens),
        stops=_stops(fields) or defaults.stops,
        ignore_eos=bool(fields.flag("ignore_eos")),
    )


def _sampling(fields: Fields, defaults: Request) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, (parameter, low, high) in _NUMBERS.items():
        number = fields.number(name, low, high)
        if number is not None:
            given[parameter] = max(number, _SMALLEST_TOP_P) if parameter == "top_p" else number
    for name, (parameter, least, most) in _INTEGERS.items():
        integer = fields.integer(name, least, most)
        if integer is not None:
            given[parameter] = integer
    seed = fields.integer("seed", RANDOM_SEED, MAX_SEED)
    given["seed"] = settled_seed(seed) if seed is not None else defaults.sampling.seed
    return given


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

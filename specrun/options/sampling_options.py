"""The options that say what to write: sampling, length, stop texts, grammar.

A field that SamplingParameters has too decides how a token is taken. Everything that takes sampling options reads these
fields, so a further one is declared here and in `sampling/parameters.py`, and acts somewhere in `sampling/`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specrun.errors import UsageError

if TYPE_CHECKING:
    from specrun.sampling.parameters import SamplingParameters

# llama.cpp's special values.
RANDOM_SEED = -1
NO_LIMIT = -1
# Logits are within some tens of 0, so a larger bias does no more. Minus infinity for all tokens would leave none.
_MAX_BIAS = 1e6

_BIAS = re.compile(r"(\d{1,9})([+-](?:\d+(?:\.\d*)?|\.\d+|inf))")

_option = partial(typer.Option, rich_help_panel="Sampling")

# fmt: off
Temperature = Annotated[float, _option(
    "--temp", metavar="T", help="Temperature: 0 always takes the likeliest token, more is more random."
)]
Seed = Annotated[int, _option(
    "--seed", "-s", metavar="N", help="The same seed gives the same text; -1 takes a random seed."
)]


@dataclass(frozen=True)
class TokenOptions:
    """How a token is taken, apart from the temperature: the options as llama.cpp has them, as the user gave them."""

    top_k: Annotated[int, _option(metavar="K", help="Sample from the K likeliest tokens only; 0 is off.")] = 40
    top_p: Annotated[float, _option(
        "--top-p", metavar="P", help="Sample from the likeliest tokens that together reach probability P; 1 is off."
    )] = 0.95
    min_p: Annotated[float, _option(
        "--min-p", metavar="P", help="Drop tokens less likely than P times the likeliest token; 0 is off."
    )] = 0.05
    repeat_penalty: Annotated[float, _option(
        "--repeat-penalty", metavar="R", help="Divide the positive logits of tokens that occurred by R; 1 is off."
    )] = 1.0
    presence_penalty: Annotated[float, _option(
        "--presence-penalty", metavar="R", help="Lower the logits of tokens that occurred by R; 0 is off."
    )] = 0.0
    frequency_penalty: Annotated[float, _option(
        "--frequency-penalty", metavar="R", help="Lower a token's logit by R for each occurrence; 0 is off."
    )] = 0.0
    repeat_last_n: Annotated[int, _option(
        "--repeat-last-n", metavar="N", help="Number of latest tokens in which the penalties count occurrences."
    )] = 64
    logit_bias: Annotated[list[str] | None, _option(
        "--logit-bias", metavar="ID+B",
        help="Add B to the logit of the token with this id, as in 15043+1 or 15043-1; -inf forbids it. May be given "
        "several times. A dict in Python."
    )] = None
    seed: Seed = 0


@dataclass(frozen=True)
class SamplingOptions(TokenOptions):
    """All options of a text."""

    temp: Temperature = 0.8
    max_tokens: Annotated[int | None, _option(
        "--max-tokens", "-n", "--predict", metavar="N",
        help="Most tokens to write. By default until the model ends its text or the context is full."
    )] = None
    stop: Annotated[list[str] | None, _option(
        "--stop", "-r", metavar="TEXT", help="End the answer before this text. May be given several times."
    )] = None
    grammar: Annotated[Path | None, _option(metavar="FILE", help="Write only what this GBNF grammar allows.")] = None
    json_schema: Annotated[Path | None, _option(
        "--json-schema", metavar="FILE", help="Write only JSON that matches this schema."
    )] = None
# fmt: on


@dataclass(frozen=True)
class ChatSamplingOptions(SamplingOptions):
    """The same options for conversations, which have a random seed by default."""

    seed: Seed = RANDOM_SEED


def sampling_parameters(options: TokenOptions, temperature: float) -> SamplingParameters:
    """What the options say about taking a token. Raises UsageError for a value outside its range."""
    from specrun.sampling.parameters import SamplingParameters  # it imports numpy, which `--help` does not need

    names = [field.name for field in fields(SamplingParameters) if field.name != "temperature"]
    return SamplingParameters(temperature, **{name: settled(name, getattr(options, name)) for name in names})


def settled(name: str, value: Any) -> Any:
    """The value of a field of SamplingParameters for the value of the option with its name. Raises UsageError."""
    if name == "seed":
        return settled_seed(value)
    return settled_biases(value) if name == "logit_bias" else value


def settled_biases(biases: Mapping[int, float] | Sequence[str] | None) -> tuple[tuple[int, float], ...]:
    """(token id, bias) pairs of `logit_bias`, as Python or the command line gives it. Raises UsageError."""
    if isinstance(biases, Mapping):
        return tuple((int(token), settled_bias(float(bias))) for token, bias in biases.items())
    pairs = []
    for text in biases or ():
        parts = _BIAS.fullmatch(text)
        if not parts:
            raise UsageError(f"--logit-bias must be a token id and a signed number, as 15043+1.5; got {text}")
        pairs.append((int(parts[1]), settled_bias(float(parts[2]))))
    return tuple(pairs)


def settled_bias(bias: float) -> float:
    """The bias, or the largest that makes a difference."""
    return min(max(bias, -_MAX_BIAS), _MAX_BIAS)


def settled_seed(seed: int) -> int:
    """The seed, or a random one for -1."""
    return secrets.randbits(63) if seed == RANDOM_SEED else seed


def settled_max_tokens(max_tokens: int | None, option: str) -> int | None:
    """The limit in tokens, None for -1. Raises UsageError, which names `option`, for 0 and other negative numbers."""
    if max_tokens is None or max_tokens == NO_LIMIT:
        return None
    if max_tokens < 1:
        raise UsageError(f"{option} must be 1 or more (-1 is no limit); got {max_tokens}")
    return max_tokens

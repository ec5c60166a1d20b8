"""The options that say what to write: sampling, length, stop texts, grammar."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from specrun.errors import UsageError

RANDOM_SEED = -1
NO_LIMIT = -1


def _option(*names: str, **values: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Sampling", **values)


Temperature = Annotated[float, _option("--temp", metavar="T", help="Temperature; 0 is greedy.")]
Seed = Annotated[int, _option("--seed", "-s", metavar="N", help="Same seed, same text; -1 is random.")]


@dataclass(frozen=True)
class SamplingOptions:
    """As the user gave them, with llama.cpp's names, meanings and defaults."""

    max_tokens: Annotated[
        int | None,
        _option(
            "--max-tokens",
            "-n",
            "--predict",
            metavar="N",
            help="Most tokens to write; by default until the model ends its text, or the context is full.",
        ),
    ] = None
    temp: Temperature = 0.8
    top_k: Annotated[int, _option("--top-k", metavar="K", help="0 is off.")] = 40
    top_p: Annotated[float, _option("--top-p", metavar="P", help="1 is off.")] = 0.95
    min_p: Annotated[float, _option("--min-p", metavar="P", help="0 is off.")] = 0.05
    repeat_penalty: Annotated[float, _option("--repeat-penalty", metavar="R", help="1 is off.")] = 1.0
    presence_penalty: Annotated[float, _option("--presence-penalty", metavar="R", help="0 is off.")] = 0.0
    frequency_penalty: Annotated[float, _option("--frequency-penalty", metavar="R", help="0 is off.")] = 0.0
    repeat_last_n: Annotated[int, _option("--repeat-last-n", metavar="N", help="Tokens that penalties look at.")] = 64
    seed: Seed = 0
    stop: Annotated[
        list[str] | None,
        _option(
            "--stop",
            "-r",
            metavar="TEXT",
            help="End before this text; may be given several times.",
            show_default=False,
        ),
    ] = None
    grammar: Annotated[
        Path | None,
        _option("--grammar", metavar="FILE", help="Write only what this GBNF grammar allows.", show_default=False),
    ] = None
    json_schema: Annotated[
        Path | None,
        _option("--json-schema", metavar="FILE", help="Write only JSON that this schema accepts.", show_default=False),
    ] = None


@dataclass(frozen=True)
class ChatSamplingOptions(SamplingOptions):
    """The same for conversations, which are random by default."""

    seed: Seed = RANDOM_SEED


def settled_seed(seed: int) -> int:
    """The seed, a random one for -1."""
    return secrets.randbits(63) if seed == RANDOM_SEED else seed


def settled_max_tokens(max_tokens: int | None, option: str) -> int | None:
    """The limit, None for llama.cpp's -1. Raises UsageError, which names `option`, for 0 and other negatives."""
    if max_tokens is None or max_tokens == NO_LIMIT:
        return None
    if max_tokens < 1:
        raise UsageError(f"{option} must be 1 or more (-1 is no limit); got {max_tokens}")
    return max_tokens

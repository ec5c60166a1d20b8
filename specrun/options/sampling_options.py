"""The options that say what to write: sampling, length, stop texts, grammar.

A field that SamplingParameters has too decides how a token is taken. Everything that takes sampling options reads these
fields, so a further one is declared here and in `sampling/adjustments.py`, and acts somewhere in `sampling/`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from specrun.errors import UsageError
from specrun.locations import decode, typed
from specrun.options.expand import flag, option

if TYPE_CHECKING:
    from specrun.sampling.adjustments import SamplingParameters

Thinking = Literal["show", "hide", "off"]

# llama.cpp's special values.
RANDOM_SEED = -1
NO_LIMIT = -1
# Logits are within some tens of 0, so a larger bias does no more. Minus infinity for all tokens would leave none.
_MAX_BIAS = 1e6

_BIAS = re.compile(r"(\d{1,18})([+-](?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf))", re.IGNORECASE)
# What llama.cpp's tools understand in the text of -r; a backslash before anything else stays.
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))")
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def _system(text: str | None) -> str | None:
    """The system message. Raises UsageError for a number: `-s` is the seed in llama.cpp's tools."""
    if text and re.fullmatch(r"-?\d+", text):
        raise UsageError(f"-s is the system message here, not the seed; did you mean --seed {text}?")
    return text and typed(text, "--system", UsageError)


def _stops(texts: list[str] | None) -> list[str] | None:
    """The stop texts, of which a shell gives `\\n` as two characters. Raises UsageError for what no text can have."""

    def meant(escape: re.Match[bytes]) -> bytes:
        return bytes.fromhex(escape[1].decode()) if escape[1] else _ESCAPED.get(escape[2], escape[2])

    given = [typed(text, "--stop", UsageError).encode() for text in texts or ()]
    return [decode(_ESCAPE.sub(meant, data), "--stop", UsageError) for data in given] or None


_option = partial(option, rich_help_panel="Sampling", usual=False)

# fmt: off
# Options that several groups have, each called with its default where that differs between them.
temp_option = partial(
    option, metavar="T", text="Temperature: 0 always takes the likeliest token, more is more random.",
    rich_help_panel="Sampling"
)
seed_option = partial(
    option, metavar="N", text="The same seed gives the same text; -1 takes a random seed.",
    rich_help_panel="Sampling"
)
system_option = partial(
    option, None, "TEXT", "The system message: what the model shall know or heed all the time.", "-s",
    show_default=False, callback=_system
)
think_option = partial(
    option, "show", "show|hide|off",
    "Show its thinking, hide it, or switch it off. The model is asked then not to think, which gpt-oss cannot."
)
raw_option = partial(flag, "No chat template: continue the prompts as they are.")
prompt_cache_option = partial(
    option, None, None,
    "Whether long prompts that were read are kept on this disk, so that a later run need not read them again. By "
    "default they are, but for --raw from a pipe; `specrun doctor` says how many.",
    "--prompt-cache/--no-prompt-cache", envvar="SPECRUN_PROMPT_CACHE", show_default=False, usual=False
)
# fmt: on


@dataclass(frozen=True)
class TokenOptions:
    """How a token is taken, apart from the temperature: the options as llama.cpp has them, as the user gave them."""

    top_k: int = _option(40, "K", "Sample from the K likeliest tokens only; 0 is off.")
    top_p: float = _option(0.95, "P", "Sample from the likeliest tokens that together reach probability P; 1 is off.")
    min_p: float = _option(0.05, "P", "Drop tokens less likely than P times the likeliest token; 0 is off.")
    repeat_penalty: float = _option(1.0, "R", "Divide the positive logits of tokens that occurred by R; 1 is off.")
    presence_penalty: float = _option(0.0, "R", "Lower the logits of tokens that occurred by R; 0 is off.")
    frequency_penalty: float = _option(0.0, "R", "Lower a token's logit by R for each occurrence; 0 is off.")
    repeat_last_n: int = _option(64, "N", "Number of latest tokens in which the penalties count occurrences.")
    # fmt: off
    logit_bias: list[str] | None = _option(
        None, "ID+B", "Add B to the logit of the token with this id, as in 15043+1 or 15043-1; -inf forbids it. May be "
        "given several times. A dict in Python."
    )
    # fmt: on
    seed: int = seed_option(0)


@dataclass(frozen=True)
class SamplingOptions(TokenOptions):
    """All options of a text."""

    temp: float = temp_option(0.8)
    # fmt: off
    max_tokens: int | None = _option(
        None, "N", "Most tokens to write. By default until the model ends its text or the context is full.", "-n",
        usual=True
    )
    stop: list[str] | None = _option(
        None, "TEXT", "End the answer before this text. May be given several times. \\n is a line break in it, as "
        "llama.cpp has it.", "-r", callback=_stops
    )
    # fmt: on
    grammar: str | None = _option(None, "FILE", "Write only what this GBNF grammar allows, in a file or given itself.")
    json_schema: str | None = _option(
        None, "FILE", "Write only JSON that matches this schema, in a file or given itself."
    )


@dataclass(frozen=True)
class ChatSamplingOptions(SamplingOptions):
    """The same options for conversations, which have a random seed by default."""

    seed: int = seed_option(RANDOM_SEED)


def sampling_parameters(options: TokenOptions, temperature: float) -> SamplingParameters:
    """What the options say about taking a token. Raises UsageError for a value outside its range."""
    from specrun.sampling.adjustments import SamplingParameters  # it imports numpy, which `--help` does not need

    names = [field.name for field in fields(SamplingParameters) if field.name != "temperature"]
    return SamplingParameters(temperature, **{name: settled(name, getattr(options, name)) for name in names})


def temperatures_in(text: str) -> tuple[float, ...]:
    """The temperatures of a list such as `0.8,0`, each once. Raises UsageError."""
    try:
        values = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        values = ()
    if not values or not all(0 <= value <= 10 for value in values):
        raise UsageError(f"--temp is a list of temperatures such as 0.8,0; got {text}")
    return values


def settled(name: str, value: Any) -> Any:
    """The value of a field of SamplingParameters for the value of the option with its name. Raises UsageError.

    `logit_bias`, a dict as Python gives it or texts of the command line, becomes (token id, bias) pairs.
    """
    if name == "seed":
        return settled_seed(value)
    if name != "logit_bias":
        return value
    pairs = list(value.items()) if isinstance(value, Mapping) else []
    for text in () if isinstance(value, Mapping) else value or ():
        parts = _BIAS.fullmatch(text)
        if not parts:
            raise UsageError(f"--logit-bias must be a token id and a signed number, as 15043+1.5; got {text}")
        pairs.append((parts[1], parts[2]))
    return tuple((int(token), settled_bias(float(bias))) for token, bias in pairs)


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

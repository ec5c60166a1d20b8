"""The sampling options, with llama.cpp's names, meanings and defaults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from specrun.errors import UsageError

MAX_SEED = 2**63 - 1
_LONGEST_BITS = 128  # of an integer that a message quotes


def _bounded(default: float, allowed: str, is_allowed: Callable[[float], bool] = math.isfinite) -> Any:
    """A field with a check. allowed: completes the message "--option must be ..."."""
    return field(default=default, metadata={"allowed": allowed, "is_allowed": is_allowed})


@dataclass(frozen=True)
class SamplingParameters:
    """How a token is chosen. They apply in llama.cpp's order: biases, penalties, top-k, top-p, min-p, temperature.

    repeat_last_n: number of latest tokens, prompt included, that the penalties look at.
    logit_bias: (token id, what is added to its logit), in any order.

    Raises UsageError for a value outside its range.
    """

    temperature: float = _bounded(0.8, "0 or more (0 is greedy)", lambda value: value >= 0)
    top_k: int = _bounded(40, "0 (off) or more", lambda value: value >= 0)
    top_p: float = _bounded(0.95, "above 0, at most 1 (off)", lambda value: 0 < value <= 1)
    min_p: float = _bounded(0.05, "between 0 (off) and 1", lambda value: 0 <= value <= 1)
    repeat_penalty: float = _bounded(1.0, "above 0 (1 is off)", lambda value: value > 0)
    presence_penalty: float = _bounded(0.0, "a finite number (0 is off)")
    frequency_penalty: float = _bounded(0.0, "a finite number (0 is off)")
    repeat_last_n: int = _bounded(64, "0 (off) or more", lambda value: value >= 0)
    seed: int = _bounded(0, f"between 0 and {MAX_SEED} (-1 is a random one)", lambda value: 0 <= value <= MAX_SEED)
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.metadata and not (_is_finite(value) and one.metadata["is_allowed"](value)):
                raise UsageError(f"{option_name(one.name)} must be {one.metadata['allowed']}; got {_quoted(value)}")
        for token, bias in self.logit_bias:
            if token < 0:
                raise UsageError(f"--logit-bias must be for a token id of 0 or more; got {token}")
            if not math.isfinite(bias):
                raise UsageError(f"--logit-bias must be a finite number; got {bias:g}")

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty is on, so that a token depends on the tokens before it."""
        penalties = self.repeat_penalty, self.presence_penalty, self.frequency_penalty
        return self.repeat_last_n > 0 and penalties != (1.0, 0.0, 0.0)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _quoted(value: float) -> str:
    """A number as it was given; Python writes no integers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > _LONGEST_BITS:
        return f"an integer of {value.bit_length()} bits"
    return str(value) if isinstance(value, int) else f"{value:g}"


def option_name(parameter: str) -> str:
    """The command-line option that sets a field of SamplingParameters."""
    return "--temp" if parameter == "temperature" else f"--{parameter.replace('_', '-')}"

"""The sampling options, with llama.cpp's names, meanings and defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specrun.errors import UsageError

MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class SamplingParameters:
    """How a token is chosen. They apply in llama.cpp's order: biases, penalties, top-k, top-p, min-p, temperature.

    logit_bias: (token id, what is added to its logit), in any order.

    Raises UsageError for a value outside its range.
    """

    temperature: float = 0.8  # 0 is greedy
    top_k: int = 40  # 0 is off
    top_p: float = 0.95  # 1 is off
    min_p: float = 0.05  # 0 is off
    repeat_penalty: float = 1.0  # 1 is off
    presence_penalty: float = 0.0  # 0 is off
    frequency_penalty: float = 0.0  # 0 is off
    repeat_last_n: int = 64  # tokens, prompt included, that the penalties look at
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        _require(self.temperature >= 0, "--temp", "0 or more (0 is greedy)", self.temperature)
        _require(self.top_k >= 0, "--top-k", "0 (off) or more", self.top_k)
        _require(0 < self.top_p <= 1, "--top-p", "above 0, at most 1 (off)", self.top_p)
        _require(0 <= self.min_p <= 1, "--min-p", "between 0 (off) and 1", self.min_p)
        _require(self.repeat_penalty > 0, "--repeat-penalty", "above 0 (1 is off)", self.repeat_penalty)
        _require(True, "--presence-penalty", "a finite number", self.presence_penalty)
        _require(True, "--frequency-penalty", "a finite number", self.frequency_penalty)
        _require(self.repeat_last_n >= 0, "--repeat-last-n", "0 (off) or more", self.repeat_last_n)
        _require(0 <= self.seed <= MAX_SEED, "--seed", f"between 0 and {MAX_SEED}", self.seed)
        for token, bias in self.logit_bias:
            _require(token >= 0, "--logit-bias", "for a token id of 0 or more", token)
            _require(True, "--logit-bias", "a finite number", bias)

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty is on, so that a token depends on the tokens before it."""
        return self.repeat_last_n > 0 and (
            self.repeat_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        )


def _require(condition: bool, option: str, allowed: str, value: float) -> None:
    if not (condition and math.isfinite(value)):
        raise UsageError(f"{option} must be {allowed}; got {value:g}")

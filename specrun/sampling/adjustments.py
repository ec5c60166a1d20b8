"""The sampling options, with llama.cpp's names, meanings and defaults, and what changes logits before any filter: a
user's biases, then the penalties, both as in llama.cpp, then constraints.

Logits of forbidden tokens become minus infinity. A grammar checks a token in a fraction of a microsecond, but a
vocabulary may have 152k tokens. So tokens are checked from the likeliest down, until the unchecked tokens cannot change
what the filters keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specrun.errors import UsageError
from specrun.sampling import filters
from specrun.sampling.filters import Logits, TokenIds

MAX_SEED = 2**63 - 1
_MOST = float(np.finfo(float).max)  # of any number
_LONG = 128  # bits of an integer that no message quotes


def _bounded(default: float, allowed: str, is_allowed: Callable[[float], bool] = lambda _: True) -> Any:
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
            if one.metadata and not (-_MOST <= value <= _MOST and one.metadata["is_allowed"](value)):
                got = f"{value:g}" if isinstance(value, float) else _quoted(value)
                raise UsageError(f"{option_name(one.name)} must be {one.metadata['allowed']}; got {got}")
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


def _quoted(value: int) -> str:
    return str(value) if value.bit_length() <= _LONG else f"an integer of {value.bit_length()} bits"


def option_name(parameter: str) -> str:
    """The command-line option that sets a field of SamplingParameters."""
    return "--temp" if parameter == "temperature" else f"--{parameter.replace('_', '-')}"


NO_TOKEN = -1  # sampled where a constraint allows no token

_DEPTHS = (64, 512, 2048)  # numbers of likeliest tokens that are checked before the whole vocabulary is
_DRAFT_DEPTH = 512  # a draft that has any candidate stops after checking this many tokens
_DRAFT_GAP = 4.0  # nats at temperatures up to 1; a draft ignores tokens this far below its best candidate
_ROUNDING = 1e-5  # an upper bound of the relative rounding error of float32


class Biases:
    """pairs: (token id, what is added to its logit). Several biases of the same token add up.

    Raises UsageError for an id that is not below `n_vocab`.
    """

    def __init__(self, pairs: Sequence[tuple[int, float]], n_vocab: int) -> None:
        ids, places = np.unique(np.array([token for token, _ in pairs], np.int64), return_inverse=True)
        if ids[-1] >= n_vocab:
            raise UsageError(f"--logit-bias must be for ids of tokens, from 0 to {n_vocab - 1}; got {ids[-1]}")
        self._tokens = ids
        self._added = np.bincount(places, [bias for _, bias in pairs]).astype(np.float32)

    def added(self, logits: Logits) -> Logits:
        """float32[n_vocab]: a copy of `logits` with the biases. A row that lacks some of the tokens is a draft's."""
        n_here = int(np.searchsorted(self._tokens, len(logits)))
        result = logits.copy()
        result[self._tokens[:n_here]] += self._added[:n_here]
        return result


def penalized(logits: Logits, recent: Sequence[int], parameters: SamplingParameters) -> Logits:
    """float32[n_vocab]: a copy of `logits` with the tokens in `recent` penalized.

    The logit of such a token is divided by repeat_penalty if it is positive and multiplied by it otherwise (CTRL,
    arXiv 1909.05858). Then presence_penalty, and frequency_penalty for each occurrence, are subtracted.
    """
    tokens, counts = np.unique(np.asarray(recent, np.int64), return_counts=True)
    inside = tokens < len(logits)
    tokens, counts = tokens[inside], counts[inside]
    result = logits.copy()
    values = result[tokens]
    values = np.where(values > 0, values / parameters.repeat_penalty, values * parameters.repeat_penalty)
    result[tokens] = values - counts * parameters.frequency_penalty - parameters.presence_penalty
    return result


class Constraint(Protocol):
    """Decides which tokens may follow the text written since the prompt."""

    def allowed(self, written: Sequence[int], tokens: TokenIds) -> NDArray[np.bool_]:
        """bool[len(tokens)]: which of `tokens` may come after `written`, the tokens since the prompt.

        All false if `written` has ended or is itself forbidden.
        """
        ...


def masked(
    logits: Logits,
    allowed: Callable[[TokenIds], NDArray[np.bool_]],
    parameters: SamplingParameters,
    n_candidates: int | None = None,
) -> Logits:
    """float32[n_vocab]: `logits` with minus infinity for forbidden tokens and for tokens that were not checked.

    The filters of `parameters` keep the same tokens of it as if every token had been checked. n_candidates: the number
    of candidates that a draft wants; checking then stops earlier, and the row may lack allowed tokens that are
    unlikely, but has at least one if any token is allowed.
    """
    row = np.full_like(logits, -np.inf)
    unchecked = logits > -np.inf  # a draft with fewer tokens lacks the others
    permitted = np.empty(0)  # logits of the allowed tokens so far, falling
    n_checked = 0
    for depth in (depth for depth in _DEPTHS if depth < len(logits)):
        tokens = filters.top_k(logits, depth)
        new = tokens[n_checked:]
        kept = new[allowed(new) & unchecked[new]]
        row[kept] = logits[kept]
        unchecked[new] = False
        permitted, n_checked = np.append(permitted, logits[kept]), depth
        bound, n_left = float(logits[tokens[-1]]), len(logits) - depth
        if len(permitted) and (
            _settled(parameters, permitted, bound, n_left)
            if n_candidates is None
            else depth >= _DRAFT_DEPTH or _enough(parameters, permitted, bound, n_candidates)
        ):
            return row
    rest = np.flatnonzero(unchecked)
    kept = rest[allowed(rest)]
    row[kept] = logits[kept]
    return row


def _settled(p: SamplingParameters, permitted: NDArray[np.float64], bound: float, n_unchecked: int) -> bool:
    """Whether the filters keep the same tokens, whichever unchecked tokens are allowed.

    permitted: float64[k], k > 0, the allowed logits so far, falling. bound: the largest possible unchecked logit.
    """
    if p.temperature == 0 or 0 < p.top_k <= len(permitted):
        return True
    if p.top_p < 1:
        # Top-p cuts at a share of the total weight. The total lies between the weight so far and `most`.
        n_more = min(n_unchecked, p.top_k - len(permitted)) if p.top_k else n_unchecked
        shares = np.cumsum(np.exp(permitted - permitted[0]))
        most = shares[-1] + n_more * np.exp(bound - permitted[0])
        cuts = np.searchsorted(shares, [p.top_p * shares[-1] * (1 - _ROUNDING), p.top_p * most * (1 + _ROUNDING)])
        return bool(cuts[0] == cuts[1])
    return p.min_p > 0 and bound < permitted[0] + np.log(p.min_p) - _ROUNDING * (1 + abs(permitted[0]))


def _enough(p: SamplingParameters, permitted: NDArray[np.float64], bound: float, n_candidates: int) -> bool:
    """Whether a draft has `n_candidates`, or no unchecked token is likely enough to be worth a node."""
    return len(permitted) >= n_candidates or bound < permitted[0] - _DRAFT_GAP * max(p.temperature, 1.0)

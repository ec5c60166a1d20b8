"""How fast plans wrote texts, how well that is known, and how two plans compare.

All plans write the same text. So a text is cut into blocks of BLOCK tokens, and a plan is described by the seconds that
it took for each block. Plans are compared block by block: what makes a stretch of text easy for both cancels out.

Standard errors are those of ratio estimators (Cochran, Sampling Techniques, chapter 6): the larger of two, one with the
blocks of a text as a series (variance by Newey and West, 1987, as neighbours are alike), and one with whole texts as
the samples, because texts differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 4  # tokens
_LAGS = 4  # neighbours on either side that a block may be alike to: 16 tokens

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A measured value and its standard error; an infinite error: nothing is known."""

    value: float
    error: float

    def combined(self, other: Estimate) -> Estimate:
        """Both as one, weighted by the inverse of their variances. Two exact values give their mean."""
        if math.isinf(self.error):
            return other
        if math.isinf(other.error):
            return self
        variances = self.error**2 + other.error**2
        share = other.error**2 / variances if variances else 0.5
        return Estimate(share * self.value + (1 - share) * other.value, self.error * math.sqrt(share))

    def widened(self, error: float) -> Estimate:
        """The same value with a further error, which is independent of its own."""
        return Estimate(self.value, math.hypot(self.error, error))


@dataclass(frozen=True)
class BlockTimes:
    """For each text, the seconds of its blocks in order; nan for a block that was not timed."""

    texts: tuple[tuple[float, ...], ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Mean over the timed blocks; 0 if there are none."""
        seconds = [one for text in self.texts for one in text if not math.isnan(one)]
        return BLOCK * len(seconds) / sum(seconds) if seconds else 0.0

    @property
    def log_rate(self) -> Estimate:
        """The natural logarithm of the rate, whose error is the rate's relative one."""
        rate = self.tokens_per_second
        if not rate:
            return Estimate(0.0, math.inf)
        return Estimate(math.log(rate), _relative_error([np.asarray(text) for text in self.texts]))

    def log_ratio(self, other: BlockTimes) -> Estimate:
        """The natural logarithm of how many times as fast as `other` this is, on the blocks that both have."""
        pairs = [_common(own, others) for own, others in zip(self.texts, other.texts, strict=False)]
        own, others = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if not sum(map(len, own)):
            return Estimate(0.0, math.inf)
        value = math.log(sum(map(np.sum, others)) / sum(map(np.sum, own)))
        return Estimate(float(value), _relative_error(own, others))


def block_seconds(lengths: Sequence[int], seconds: Sequence[float], n_untimed: int = 0) -> tuple[float, ...]:
    """The seconds of every whole block of a text. The time of a pass is divided evenly among its tokens.

    lengths, seconds: committed tokens and time of every pass. n_untimed: first passes whose time does not count; blocks
    that begin in them are nan.
    """
    tokens = np.cumsum([0, *lengths])
    edges = np.arange(0, tokens[-1] + 1, BLOCK)
    times = np.diff(np.interp(edges, tokens, np.cumsum([0.0, *seconds])))
    times[edges[:-1] < tokens[min(n_untimed, len(lengths))]] = math.nan
    return tuple(times.tolist())


def _common(own: Sequence[float], others: Sequence[float]) -> tuple[Seconds, Seconds]:
    n = min(len(own), len(others))
    pair = np.array([own[:n], others[:n]])
    return tuple(pair[:, ~np.isnan(pair).any(axis=0)])


def _relative_error(own: Sequence[Seconds], others: Sequence[Seconds] | None = None) -> float:
    """The standard error of log(sum of others / sum of own); without `others` of log(blocks / sum of own).

    Infinite for a single block.
    """
    if others is None:
        own = [text[~np.isnan(text)] for text in own]
        others = [np.ones(len(text)) for text in own]
    n_blocks = sum(map(len, own))
    if n_blocks < 2:
        return math.inf
    total, total_others = sum(text.sum() for text in own), sum(text.sum() for text in others)
    residuals = [a / total - b / total_others for a, b in zip(own, others, strict=True) if len(a)]
    of_blocks = sum(_series_variance(text) for text in residuals) * n_blocks / (n_blocks - 1)
    of_texts = 0.0
    if (n_texts := len(residuals)) > 1:
        of_texts = sum(float(text.sum()) ** 2 for text in residuals) * n_texts / (n_texts - 1)
    return math.sqrt(max(of_blocks, of_texts))


def _series_variance(residuals: Seconds) -> float:
    """The variance of the sum of residuals that follow each other, at least that of independent ones."""
    independent = float(residuals @ residuals)
    covariances = sum(
        (1 - lag / (_LAGS + 1)) * float(residuals[lag:] @ residuals[:-lag])
        for lag in range(1, min(_LAGS, len(residuals) - 1) + 1)
    )
    return max(independent + 2 * covariances, independent)

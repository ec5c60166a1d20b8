"""Log-probabilities of the model itself, before biases, penalties, filters and temperature, as OpenAI gives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import filters


@dataclass(frozen=True)
class TokenLogprob:
    """A token that was written, and what else was likely there."""

    token: int
    logprob: float  # the natural logarithm of its probability
    top: tuple[tuple[int, float], ...]  # (token id, logprob) of the likeliest tokens, likeliest first


def logprob(logits: NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """What `logits`, float32[n_vocab], say of `token` and the `n_top` likeliest. Raises LlamaError if one is NaN."""
    highest = float(logits.max())
    filters.check(highest)
    log_total = highest + float(np.log(np.exp(logits.astype(np.float64) - highest).sum()))
    top = filters.top_k(logits, n_top).tolist() if n_top else []
    likeliest = tuple((one, float(logits[one]) - log_total) for one in top)
    return TokenLogprob(token, float(logits[token]) - log_total, likeliest)

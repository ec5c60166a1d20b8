"""Log-probabilities of tokens as users want to see them: the model's own, before biases, penalties, filters and
temperature. llama-server and OpenAI give the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import filters


@dataclass(frozen=True)
class TokenLogprob:
    """A token that was written, and what else was likely there.

    token: its id. logprob: the natural logarithm of its probability. top: (token id, logprob) of the likeliest tokens,
    likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprob(logits: NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """What `logits`, float32[n_vocab], say of `token` and of the `n_top` likeliest tokens.

    Raises LlamaError for logits that are no numbers.
    """
    highest = float(logits.max())
    filters.check(highest)
    log_total = highest + float(np.log(np.exp(logits.astype(np.float64) - highest).sum()))
    top = filters.top_k(logits, n_top).tolist() if n_top else []
    return TokenLogprob(
        token, float(logits[token]) - log_total, tuple((one, float(logits[one]) - log_total) for one in top)
    )

"""Repeat, presence and frequency penalties, as llama.cpp applies them to raw logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.sampling.parameters import SamplingParameters


def penalized(
    logits: NDArray[np.float32], recent: Sequence[int], parameters: SamplingParameters
) -> NDArray[np.float32]:
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

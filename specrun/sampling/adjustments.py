"""What changes logits before any filter: a user's biases, and then the penalties, both as in llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.errors import UsageError
from specrun.sampling.filters import Logits
from specrun.sampling.parameters import SamplingParameters


class Biases:
    """pairs: (token id, what is added to its logit). Several biases of the same token add up.

    Raises UsageError for an id that is not below `n_vocab`.
    """

    def __init__(self, pairs: Sequence[tuple[int, float]], n_vocab: int) -> None:
        ids, places = np.unique(np.array([token for token, _ in pairs], np.int64), return_inverse=True)
        if ids[-1] >= n_vocab:
            raise UsageError(f"--logit-bias must be for the ids of tokens, below {n_vocab}; got {ids[-1]}")
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

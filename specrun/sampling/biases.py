"""Biases: numbers that a user adds to the logits of some tokens, before penalties and filters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.errors import UsageError


class Biases:
    """pairs: (token id, what is added to its logit). Those of the same token add up, as in llama.cpp.

    Raises UsageError for an id that is not below `n_vocab`.
    """

    def __init__(self, pairs: Sequence[tuple[int, float]], n_vocab: int) -> None:
        ids, places = np.unique(np.array([token for token, _ in pairs], np.int64), return_inverse=True)
        if ids[-1] >= n_vocab:
            raise UsageError(f"--logit-bias must be for the ids of tokens, below {n_vocab}; got {ids[-1]}")
        self._tokens = ids
        self._added = np.bincount(places, [bias for _, bias in pairs]).astype(np.float32)

    def added(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32[n_vocab]: a copy of `logits` with the biases. A row that lacks some of the tokens is a draft's."""
        n_here = int(np.searchsorted(self._tokens, len(logits)))
        result = logits.copy()
        result[self._tokens[:n_here]] += self._added[:n_here]
        return result

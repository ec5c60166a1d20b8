"""Biases: numbers that a user adds to the logits of some tokens, before penalties and filters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Biases:
    """pairs: (token id, what is added to its logit). Those of the same token add up, as in llama.cpp."""

    def __init__(self, pairs: Sequence[tuple[int, float]]) -> None:
        ids, places = np.unique(np.array([token for token, _ in pairs], np.int64), return_inverse=True)
        self._tokens = ids
        self._added = np.bincount(places, [bias for _, bias in pairs]).astype(np.float32)

    def added(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32[n_vocab]: a copy of `logits` with the biases. A row that lacks some of the tokens is a draft's."""
        n_here = int(np.searchsorted(self._tokens, len(logits)))
        result = logits.copy()
        result[self._tokens[:n_here]] += self._added[:n_here]
        return result

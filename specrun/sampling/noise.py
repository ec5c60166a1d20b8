"""Gumbel noise that target and draft share, keyed by (seed, absolute position).

Drafter-invariant sampling (Daliri et al., arXiv 2408.07978): with argmax(logits / T + g) for the target and the top of
logits / T + g for the draft, both sample with the same luck, so a draft that resembles the target proposes what the
target will take, at any temperature; and the text depends on the seed alone, not on how it was drafted.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

_KEPT_POSITIONS = 64  # 39 MB at 152k tokens; a deeper tree only makes some rows twice


class SharedNoise:
    """Standard Gumbel noise for every token of the vocabulary at every position; fresh per position.

    The bits come from numpy's Philox, a counter-based generator keyed by (seed, position). 32 bits per token reach
    g = 22.9, so a token of probability 1e-9 still has its chance.
    """

    def __init__(self, seed: int, n_vocab: int) -> None:
        self._seed = seed
        self._n_vocab = n_vocab
        self._bits: OrderedDict[int, tuple[NDArray[np.uint32], float]] = OrderedDict()

    def gumbel(self, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[len(tokens)]: the noise of `tokens` at `position`."""
        return _gumbel(self._row(position)[0][tokens])

    def largest(self, position: int) -> float:
        """The largest noise of any token at `position`."""
        return self._row(position)[1]

    def _row(self, position: int) -> tuple[NDArray[np.uint32], float]:
        row = self._bits.get(position)
        if row is None:
            generator = np.random.Philox(key=np.array([self._seed, position], np.uint64))
            bits = generator.random_raw((self._n_vocab + 1) // 2).view(np.uint32)[: self._n_vocab]
            row = bits, float(_gumbel(bits.max(keepdims=True))[0])
            self._bits[position] = row
            if len(self._bits) > _KEPT_POSITIONS:
                self._bits.popitem(last=False)
        return row


def _gumbel(bits: NDArray[np.uint32]) -> NDArray[np.float64]:
    uniform = (bits + 0.5) * 2.0**-32  # strictly between 0 and 1
    return -np.log(-np.log(uniform))

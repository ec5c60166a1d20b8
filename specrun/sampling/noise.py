"""Gumbel noise that target and draft share, keyed by (seed, absolute position, token).

Drafter-invariant sampling (Daliri et al., arXiv 2408.07978): with argmax(logits / T + g) for the target and the top of
logits / T + g for the draft, both sample with the same luck, so a draft that resembles the target proposes what the
target will take, at any temperature; and the text depends on the seed alone, not on how it was drafted.

The bits are SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), whose n-th
output is a function of its start and n: with top-k 40, forty tokens cost forty evaluations and not a vocabulary of
them. Each position has a start of its own.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
LUCKY = 4.0  # noise that one token in fifty-five reaches
_LUCKY_BITS = np.uint64(int(np.exp(-np.exp(-LUCKY)) * 2.0**53) << 11)
_KEPT_POSITIONS = 128


class SharedNoise:
    """Standard Gumbel noise for every token of the vocabulary at every position; fresh per position.

    53 bits per token reach g = 37, so no token is out of reach for want of bits.
    """

    def __init__(self, seed: int, n_vocab: int) -> None:
        self._seed = _mixed(np.array([seed], np.uint64))
        self._steps = np.arange(1, n_vocab + 1, dtype=np.uint64) * _GAMMA
        self._lucky: OrderedDict[int, tuple[NDArray[np.int64], NDArray[np.float64]]] = OrderedDict()

    def gumbel(self, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[len(tokens)]: the noise of `tokens` at `position`."""
        return _gumbel(_mixed(self._start(position) + self._steps[tokens]))

    def lucky(self, position: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The tokens whose noise at `position` is at least LUCKY, ascending, and that noise."""
        found = self._lucky.get(position)
        if found is None:
            bits = _mixed(self._start(position) + self._steps)
            tokens = np.flatnonzero(bits >= _LUCKY_BITS)
            found = tokens, _gumbel(bits[tokens])
            self._lucky[position] = found
            if len(self._lucky) > _KEPT_POSITIONS:
                self._lucky.popitem(last=False)
        return found

    def _start(self, position: int) -> NDArray[np.uint64]:
        return _mixed(self._seed + np.array([position], np.uint64) * _GAMMA)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function, in place."""
    shifted = x >> np.uint64(30)
    x ^= shifted
    x *= _MIX_1
    np.right_shift(x, np.uint64(27), out=shifted)
    x ^= shifted
    x *= _MIX_2
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
    return x


def _gumbel(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    uniform = ((bits >> np.uint64(11)) + 0.5) * 2.0**-53  # strictly between 0 and 1
    return -np.log(-np.log(uniform))

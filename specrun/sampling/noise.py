"""Gumbel noise that target and draft share, a function of (seed, absolute position, token).

Drafter-invariant sampling (Daliri et al., arXiv 2408.07978): the target takes argmax(logits / T + noise) and the draft
proposes the highest logits / T + noise. Both add the same noise, so a draft that resembles the target proposes what the
target will take, at any temperature, and the text depends on the seed but not on how it was drafted.

The bits come from SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). Its
n-th output is a function of its start and n alone, so the noise of 40 tokens takes 40 evaluations, not one for every
token of the vocabulary. Each position has a start of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# The constants of SplitMix64.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1

LARGE_NOISE = 4.0  # one token in 55 has at least this noise
_LARGE_NOISE_BITS = np.uint64(int(np.exp(-np.exp(-LARGE_NOISE)) * 2.0**53) << 11)
# Fewer tokens than this are mixed one by one: after a pass over a large model, when the processor's caches are full of
# weights, each call of numpy takes as long as some dozens of Python's own operations.
_FEW = 24
_KEPT_POSITIONS = 128  # positions whose `large_noise` is cached


class SharedNoise:
    """Standard Gumbel noise for every token of the vocabulary at every position.

    53 random bits a token let the noise reach 37, so that every token can win.
    """

    def __init__(self, seed: int, n_vocab: int) -> None:
        self._seed = _mixed_number(seed)
        self._steps = _steps(n_vocab)
        self._large: OrderedDict[int, tuple[NDArray[np.int64], NDArray[np.float64]]] = OrderedDict()

    def gumbel(self, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[len(tokens)]: the noise of `tokens` at `position`."""
        start = self._start(position)
        if len(tokens) < _FEW:
            bits = [_mixed_number(start + (token + 1) * int(_GAMMA)) >> 11 for token in tokens.tolist()]
            return _gumbel(np.array(bits, np.uint64))
        return _gumbel(_mixed(np.uint64(start) + self._steps[tokens]) >> np.uint64(11))

    def gumbel_of_each(self, positions: Sequence[int], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[n, k]: the noise of each row of int64[n, k] tokens at its position."""
        starts = {position: self._start(position) for position in set(positions)}
        start = np.array([starts[position] for position in positions], np.uint64)
        return _gumbel(_mixed(start[:, None] + self._steps[tokens]) >> np.uint64(11))

    def large_noise(self, position: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The tokens whose noise at `position` is at least LARGE_NOISE (int64[k], ascending) and that noise."""
        if position not in self._large:
            bits = _mixed(np.uint64(self._start(position)) + self._steps)
            tokens = np.flatnonzero(bits >= _LARGE_NOISE_BITS)
            self._large[position] = tokens, _gumbel(bits[tokens] >> np.uint64(11))
            if len(self._large) > _KEPT_POSITIONS:
                self._large.popitem(last=False)
        return self._large[position]

    def _start(self, position: int) -> int:
        return _mixed_number(self._seed + position * int(_GAMMA))


@lru_cache(maxsize=4)  # of target and draft: each answer that a program keeps has a sampler
def _steps(n_vocab: int) -> NDArray[np.uint64]:
    """uint64[n_vocab]: where SplitMix64's output for each token is, from the start of a position."""
    return np.arange(1, n_vocab + 1, dtype=np.uint64) * _GAMMA


def _mixed_number(x: int) -> int:
    """The same as `_mixed`, of a single number that may have more than 64 bits."""
    x &= _MASK
    x = (x ^ x >> 30) * int(_MIX_1) & _MASK
    x = (x ^ x >> 27) * int(_MIX_2) & _MASK
    return x ^ x >> 31


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
    """float64[n]: Gumbel noise from uniformly random numbers of 53 bits."""
    uniform = (bits + 0.5) * 2.0**-53  # strictly between 0 and 1
    return -np.log(-np.log(uniform))

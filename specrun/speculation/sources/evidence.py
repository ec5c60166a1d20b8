"""The classes of evidence that sources with text matching use for their guesses.

The class of a guess depends on the length of the match that the token followed, and on how many of the occurrences of
the longest match the token followed (its share).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)  # shortest match, in tokens, of each bucket of lengths

# Shares, weakest first. The token followed: only a shorter match; at most half of the occurrences; at most half, but it
# ranks first; the only occurrence; more than half; all of several occurrences.
SHORTER, FEW, FIRST, ONCE, MOST, ALWAYS = range(6)
_N_SHARES = 6

N_EVIDENCE = _N_SHARES * len(_LENGTHS)
"""Number of classes. A class is `6 * bucket + share`, with the bucket of the length of the match."""


def base_evidence(longest: int) -> Sequence[int]:
    """For each length of a match from 0 to `longest` tokens, the class of its weakest share."""
    return [_N_SHARES * (sum(start <= length for start in _LENGTHS) - 1) for length in range(longest + 1)]


def shares(counts: Sequence[int]) -> list[int]:
    """The share of each token that followed the longest match. counts: how often each did, best-ranked first."""
    if len(counts) == 1:
        return [ALWAYS if counts[0] > 1 else ONCE]
    half = sum(counts) / 2
    result = [MOST if count > half else FEW for count in counts]
    if result and result[0] == FEW:
        result[0] = FIRST
    return result


_SHORT = np.array([0.02, 0.05, 0.17, 0.35, 0.33, 0.7])
_LONG = np.array([0.01, 0.03, 0.19, 0.9, 0.83, 0.98])
PRIOR = np.concatenate([_SHORT + (_LONG - _SHORT) * min(i / 5, 1.0) for i in range(len(_LENGTHS))])
"""float64[N_EVIDENCE]: about how often guesses of each class were right in samples of code, prose and JSON.

Measured for matches of one token (`_SHORT`) and of eight and more (`_LONG`), interpolated between them.
"""

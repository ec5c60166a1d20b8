"""What a match in a text says for a token that followed it: one scale for every source that looks for matches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)

# How the occurrences of the longest match speak for a token, weakest first: it followed a shorter suffix only; at most
# half of them; at most half, but it ranks first; its only one; more than half; each of several.
SHORTER, FEW, FIRST, ONCE, MOST, ALWAYS = range(6)
_N_SHARES = 6

N_EVIDENCE = _N_SHARES * len(_LENGTHS)
"""Classes: `6 * bucket + share`, where the bucket is that of the length of the match that the token followed (from 1,
2, 3, 4, 6, 8, 12 and 16 tokens on).
"""


def base_evidence(longest: int) -> Sequence[int]:
    """By length of the match, from 0 to `longest` tokens, the class of its weakest share."""
    return [_N_SHARES * (sum(start <= length for start in _LENGTHS) - 1) for length in range(longest + 1)]


def shares(counts: Sequence[int]) -> list[int]:
    """How the occurrences of the longest match speak for the tokens that followed it. counts: of each, best first."""
    if len(counts) == 1:
        return [ALWAYS if counts[0] > 1 else ONCE]
    half = sum(counts) / 2
    found = [MOST if count > half else FEW for count in counts]
    if found and found[0] == FEW:
        found[0] = FIRST
    return found


_SHORT = np.array([0.02, 0.05, 0.17, 0.35, 0.33, 0.7])
_LONG = np.array([0.01, 0.03, 0.19, 0.9, 0.83, 0.98])
PRIOR = np.concatenate([_SHORT + (_LONG - _SHORT) * min(i / 5, 1.0) for i in range(len(_LENGTHS))])
"""float64[N_EVIDENCE]: how often a guess of each class was right in code, prose and JSON, about; from matches of one
token to those of eight and more.
"""

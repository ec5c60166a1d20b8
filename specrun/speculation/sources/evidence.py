"""What a match in a text says for a token that followed it: one scale for every source that looks for matches."""

from __future__ import annotations

from collections.abc import Sequence

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)

# How the occurrences of the longest match speak for a token, weakest first: it followed a shorter suffix only; at most
# half of them; more than half; its only one; each of several.
SHORTER, FEW, MOST, ONCE, ALWAYS = range(5)
_N_SHARES = 5

N_EVIDENCE = _N_SHARES * len(_LENGTHS)
"""Classes: `5 * bucket + share`, where the bucket is that of the length of the match that the token followed (from 1,
2, 3, 4, 6, 8, 12 and 16 tokens on).
"""


def base_evidence(longest: int) -> Sequence[int]:
    """By length of the match, from 0 to `longest` tokens, the class of its weakest share."""
    return [_N_SHARES * (sum(start <= length for start in _LENGTHS) - 1) for length in range(longest + 1)]

"""What a new text shares with the one already in a cache."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that two texts share."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the usual case by far, and one comparison in C
        return n
    return next(i for i in range(n) if a[i] != b[i])

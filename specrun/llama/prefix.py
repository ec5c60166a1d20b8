"""The common prefix of two texts."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two texts, in tokens."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the usual case, decided by one comparison in C
        return n
    return next(i for i in range(n) if a[i] != b[i])

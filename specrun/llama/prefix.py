"""What a cache has in common with the next text."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two texts, in tokens."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the usual case, decided by one comparison in C
        return n
    return next(i for i in range(n) if a[i] != b[i])


class CacheChange:
    """A `with` block that changes a cache.

    is_unfinished: whether the last such block began and did not end, because of Ctrl-C or a pass that failed. What the
        cache holds is then unknown.
    """

    is_unfinished = False

    def __enter__(self) -> None:
        self.is_unfinished = True

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.is_unfinished = error is not None

"""A suffix array over a large fixed text, and a source that looks up in it what followed the end of the current text.

In Python a suffix automaton takes about 500 bytes a token. For a fixed text a suffix array takes 8, of which 4 are the
text's own, and numpy sorts a million tokens in half a second.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from specrun.speculation.sources.source import N_EVIDENCE, ONCE, Guess, Int32Array, guesses_after, shares

MAX_MATCH = 16  # tokens of the longest match
MAX_TOKENS = 1 << 26  # most tokens of an array; sorting takes about 50 bytes a token, so 3.4 GB for so many
SEPARATOR = -1  # stands after every text, so that no match extends over the end of a text
_MAX_SAMPLES = 128  # occurrences of a match whose next tokens are counted
_MAX_CACHED = 1 << 14  # entries of a cache

# (length, start, stop): order[start:stop] holds the occurrences of a phrase of `length` tokens.
Range = tuple[int, int, int]
Ranges = tuple[Range, ...]  # the range of every suffix of a text that occurs in the array, longest first
Followers = tuple[
    tuple[int, int], ...
]  # (token, share) of what followed a phrase, best first; shares as in `source.py`


@dataclass(frozen=True)
class SuffixArray:
    """Texts and the order of their suffixes."""

    tokens: Int32Array  # int32[n + MAX_MATCH], the texts, each followed by a separator, then MAX_MATCH more separators
    order: Int32Array  # int32[n], positions 0 .. n - 1 sorted by at least the MAX_MATCH + 1 tokens that begin there

    @classmethod
    def build(cls, texts: Sequence[Int32Array]) -> SuffixArray:
        """Sort the suffixes of `texts`, oldest text first. Raises ValueError for more than MAX_TOKENS tokens."""
        end = np.full(1, SEPARATOR, np.int32)
        parts = [part for text in texts for part in (np.asarray(text, np.int32), end)]
        n = sum(map(len, parts))
        if n > MAX_TOKENS:
            raise ValueError(f"{n} tokens are more than the {MAX_TOKENS} that can be sorted")
        tokens = np.concatenate([*parts, np.full(MAX_MATCH, SEPARATOR, np.int32)])
        return cls(tokens, _sorted_suffixes(tokens[:n]))

    def __len__(self) -> int:
        return len(self.order)


def _sorted_suffixes(tokens: Int32Array) -> Int32Array:
    """int32[n]: positions sorted by their next 24 tokens, then by position (prefix doubling)."""
    n = len(tokens)
    if n == 0:
        return np.zeros(0, np.int32)
    # The first key holds three tokens of 21 bits each; separators and the end of the text count as 0.
    key = np.zeros(n + 2, np.int64)
    key[:n] = tokens
    key[:n] += 1
    key = (key[:-2] << 42) + (key[1:-1] << 21) + key[2:]
    length = 3
    while True:
        order = np.argsort(key, kind="stable").astype(np.int32)
        if length > MAX_MATCH:
            return order
        in_order = key[order]
        rank = np.empty(n, np.int64)
        rank[order] = np.cumsum(np.concatenate([[True], in_order[1:] != in_order[:-1]]))
        key = rank * (n + 1)
        key[: max(n - length, 0)] += rank[length:]
        length *= 2


class SuffixArraySource:
    """Guesses what followed the longest suffix (up to 16 tokens) found in the array. Evidence: see `source.py`."""

    n_evidence = N_EVIDENCE

    def __init__(self, array: SuffixArray) -> None:
        self._tokens, self._order = np.asarray(array.tokens), np.asarray(array.order)
        # Single items of a memoryview are read several times as fast as those of an array.
        self._text, self._sorted = memoryview(self._tokens.data), memoryview(self._order.data)
        self._everything: Range = (0, 0, len(self._sorted))
        # The text is fixed and short matches recur often.
        self._followers = lru_cache(_MAX_CACHED)(self._count_followers)
        self._narrowed = lru_cache(_MAX_CACHED)(self._narrow)
        self._committed: Ranges = ()
        self._after = cache(self._ranges_after)  # until the text goes on

    def reset(self) -> None:
        self._committed = ()
        self._after.cache_clear()

    def extend(self, tokens: Sequence[int]) -> None:
        # Earlier tokens are too far back to be part of a match.
        if len(tokens) >= MAX_MATCH:
            self._committed = ()
            tokens = tokens[-MAX_MATCH:]
        for token in tokens:
            self._committed = self._step(self._committed, token)
        self._after.cache_clear()

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """What followed the longest suffix, then shorter ones; for each the most frequent, then the latest, first."""
        return guesses_after(self._matches(path), count)

    def _matches(self, path: Sequence[int]) -> Iterator[tuple[int, Followers]]:
        n_longer = 0
        for length, start, stop in self._after(tuple(path)):
            if stop - start != n_longer:  # else these are the occurrences of the longer match
                n_longer = stop - start
                yield length, self._followers(length, start, stop)

    def _count_followers(self, length: int, start: int, stop: int) -> Followers:
        """The followers of a match, counted over at most 128 of its occurrences."""
        if stop - start == 1:
            token = self._text[self._sorted[start] + length]
            return () if token == SEPARATOR else ((token, ONCE),)
        # Occurrences are sorted by their next token, so evenly spaced samples are fair and equal tokens adjoin.
        n = min(stop - start, _MAX_SAMPLES)
        positions = self._order[start + np.arange(n) * (stop - start) // n]
        tokens = self._tokens[positions + length]
        first = np.flatnonzero(tokens[1:] != tokens[:-1]) + 1
        ends = [*first.tolist(), n]
        starts = [0, *ends[:-1]]
        latest = np.maximum.reduceat(positions, starts).tolist()
        ranked = sorted(
            [(end - begin, last, tokens[begin].item()) for begin, end, last in zip(starts, ends, latest, strict=True)],
            reverse=True,
        )
        ranked = [entry for entry in ranked if entry[2] != SEPARATOR]
        return tuple(zip([token for *_, token in ranked], shares([count for count, *_ in ranked]), strict=True))

    def _ranges_after(self, path: tuple[int, ...]) -> Ranges:
        return self._step(self._after(path[:-1]), path[-1]) if path else self._committed

    def _step(self, ranges: Ranges, token: int) -> Ranges:
        """The ranges after one more token: each range so far, and that of the empty phrase, narrowed by the token."""
        longer = [self._narrowed(*before, token) for before in (*ranges, self._everything) if before[0] < MAX_MATCH]
        return tuple(narrowed for narrowed in longer if narrowed[1] < narrowed[2])

    def _narrow(self, length: int, start: int, stop: int, token: int) -> Range:
        """The part of a range whose phrases are followed by `token`; it may be empty."""
        text, order = self._text, self._sorted

        def following(position: int) -> int:
            return text[position + length]

        start = bisect_left(order, token, start, stop, key=following)
        # Most ranges are short, so look for the end within four entries before searching all of the rest.
        near = min(start + 4, stop)
        if near < stop and following(order[near]) == token:
            near = stop
        return length + 1, start, bisect_right(order, token, start, near, key=following)

"""Which tokens follow a phrase in a large fixed text: a suffix array, and a source that looks suffixes up in it.

A suffix automaton in Python takes some 600 bytes and 10 us a token, so a text that does not grow is better sorted: 4
bytes a token beside the 4 of the text, and numpy sorts a million tokens in under a second.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.sources.base import Guess, PathStates
from specrun.speculation.sources.evidence import ALWAYS, FEW, MOST, N_EVIDENCE, ONCE, SHORTER, base_evidence

MAX_MATCH = 16
MAX_TOKENS = 1 << 26
"""Of one array. Sorting takes about 60 bytes a token, so 4 GB at this size."""

SEPARATOR = -1
"""Stands between texts, so that nothing is found across their border; it follows nothing."""

_MAX_SAMPLES = 256
_EVIDENCE = base_evidence(MAX_MATCH)

Int32Array = NDArray[np.int32]

Ranges = tuple[tuple[int, int, int], ...]
"""For each suffix that occurs, longest first: its length, and the range of the order where its occurrences are."""


@dataclass(frozen=True)
class SuffixArray:
    """tokens: int32[n + MAX_MATCH], a text and as many separators behind it. order: int32[n], its positions, sorted by
    the MAX_MATCH + 1 tokens (or more) that begin there.
    """

    tokens: Int32Array
    order: Int32Array

    @classmethod
    def build(cls, texts: Sequence[Int32Array]) -> SuffixArray:
        """Sort the suffixes of texts, oldest first. Raises ValueError for more than MAX_TOKENS tokens."""
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
    """int32[n]: positions in the order of their next 24 tokens or more, then of the position (prefix doubling)."""
    n = len(tokens)
    if n == 0:
        return np.zeros(0, np.int32)
    # Three tokens of up to 21 bits are one key to begin with; separators and the end are 0.
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
    """A source over a suffix array: what followed the longest suffix, of up to 16 tokens, that its text holds.

    Evidence: see `evidence.py`.
    """

    n_evidence = N_EVIDENCE

    def __init__(self, name: str, array: SuffixArray) -> None:
        self.name = name
        self._tokens, self._order = np.asarray(array.tokens), np.asarray(array.order)
        # One by one, a memoryview's items are read several times as fast as an array's.
        self._text, self._sorted = memoryview(self._tokens.data), memoryview(self._order.data)
        self._first: dict[int, tuple[int, int]] = {}
        self._followers_of: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        self._committed: Ranges = ()
        self._paths: PathStates[Ranges] = PathStates((), self._step)

    def reset(self) -> None:
        self._committed = ()
        self._paths.restart(())

    def extend(self, tokens: Sequence[int]) -> None:
        # What came earlier is too far back to be part of a match.
        if len(tokens) >= MAX_MATCH:
            self._committed = ()
            tokens = tokens[-MAX_MATCH:]
        for token in tokens:
            self._committed = self._step(self._committed, token)
        self._followers_of = {}
        self._paths.restart(self._committed)

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """Tokens that followed the longest suffix, the most frequent first and of equals the latest; then those of
        shorter ones.
        """
        found: dict[int, Guess] = {}
        is_longest = True
        for match in self._paths.after(path):
            evidence = _EVIDENCE[match[0]]
            for token, share in self._followers(match):
                if token not in found:
                    found[token] = Guess(token, evidence + (share if is_longest else SHORTER))
                    if len(found) == count:
                        return list(found.values())
            is_longest = is_longest and not found
        return list(found.values())

    def _followers(self, match: tuple[int, int, int]) -> list[tuple[int, int]]:
        """What followed a match, and the share of each, from 256 of its occurrences if it has more."""
        known = self._followers_of.get(match)
        if known is None:
            known = self._followers_of[match] = self._count_followers(*match)
        return known

    def _count_followers(self, length: int, start: int, stop: int) -> list[tuple[int, int]]:
        if stop - start == 1:
            token = self._text[self._sorted[start] + length]
            return [] if token == SEPARATOR else [(token, ONCE)]
        if stop - start <= _MAX_SAMPLES:
            positions = self._order[start:stop]
        else:
            # They are sorted by what follows, so evenly spaced ones stand for all.
            positions = self._order[np.linspace(start, stop - 1, _MAX_SAMPLES, dtype=np.int64)]
        counts: dict[int, int] = {}
        latest: dict[int, int] = {}
        for token, position in zip(self._tokens[positions + length].tolist(), positions.tolist(), strict=True):
            counts[token] = counts.get(token, 0) + 1
            latest[token] = max(latest.get(token, 0), position)
        counts.pop(SEPARATOR, None)
        if len(counts) == 1:
            return [(token, ALWAYS if n > 1 else ONCE) for token, n in counts.items()]
        half = sum(counts.values()) / 2
        ranked = sorted(counts, key=lambda token: (counts[token], latest[token]), reverse=True)
        return [(token, MOST if counts[token] > half else FEW) for token in ranked]

    def _step(self, ranges: Ranges, token: int) -> Ranges:
        """The suffixes that occur, one token on: those of before with the token behind them, and the token alone."""
        longer = []
        for length, start, stop in ranges:
            if length == MAX_MATCH:
                continue
            found = self._narrowed(length, start, stop, token)
            if found:
                longer.append((length + 1, *found))
        alone = self._first.get(token)
        if alone is None:
            alone = self._first[token] = self._narrowed(0, 0, len(self._sorted), token) or (0, 0)
        return (*longer, (1, *alone)) if alone[1] else ()

    def _narrowed(self, length: int, start: int, stop: int, token: int) -> tuple[int, int] | None:
        """The part of a range whose suffixes have `token` behind their first `length` ones."""
        text, order = self._text, self._sorted

        def behind(position: int) -> int:
            return text[position + length]

        start = bisect_left(order, token, start, stop, key=behind)
        if start == stop or behind(order[start]) != token:
            return None
        if stop - start > 8 and behind(order[start + 8]) != token:
            stop = start + 8
        return start, bisect_right(order, token, start, stop, key=behind)

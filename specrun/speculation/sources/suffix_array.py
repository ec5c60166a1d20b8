"""Which tokens follow a phrase in a large fixed text: a suffix array, and a source that looks suffixes up in it.

A suffix automaton in Python takes some 500 bytes a token, so a text that does not grow is better sorted: that takes 4
bytes a token beside the 4 of the text, and numpy sorts a million tokens in half a second.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.sources.evidence import N_EVIDENCE, ONCE, SHORTER, base_evidence, shares
from specrun.speculation.sources.source import Guess, PathStates

MAX_MATCH = 16
MAX_TOKENS = 1 << 26
"""Of one array. Sorting takes about 50 bytes a token, so 3.4 GB at this size."""

SEPARATOR = -1
"""Stands between texts, so that nothing is found across their border; it follows nothing."""

_MAX_SAMPLES = 128
_MAX_KNOWN = 1 << 14
_EVIDENCE = base_evidence(MAX_MATCH)

Int32Array = NDArray[np.int32]

Range = tuple[int, int, int]
"""The length of a phrase, and the start and stop of its occurrences in the order."""

Ranges = tuple[Range, ...]
"""Of each suffix that occurs, longest first."""

Followers = tuple[tuple[int, int], ...]

Key = TypeVar("Key")
Value = TypeVar("Value")


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
        self._everything: Range = (0, 0, len(self._sorted))
        self._known_ranges: OrderedDict[tuple[Range, int], Range] = OrderedDict()
        self._known_followers: OrderedDict[Range, Followers] = OrderedDict()
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
        self._paths.restart(self._committed)

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """Tokens that followed the longest suffix, the most frequent first and of equals the latest; then those of
        shorter ones.
        """
        found: dict[int, Guess] = {}
        n_longer = 0
        is_longest = True
        for match in self._paths.after(path):
            n_occurrences = match[2] - match[1]
            if n_occurrences == n_longer:
                continue  # the same ones as those of the longer match
            n_longer = n_occurrences
            evidence = _EVIDENCE[match[0]]
            for token, share in self._followers(match):
                if token not in found:
                    found[token] = Guess(token, evidence + (share if is_longest else SHORTER))
                    if len(found) == count:
                        return list(found.values())
            is_longest = is_longest and not found
        return list(found.values())

    def _followers(self, match: Range) -> Followers:
        """What followed a match, and the share of each, from 128 of its occurrences if it has more."""
        known = self._known_followers.get(match)
        if known is None:
            known = self._count_followers(*match)
            _remember(self._known_followers, match, known)
        return known

    def _count_followers(self, length: int, start: int, stop: int) -> Followers:
        if stop - start == 1:
            token = self._text[self._sorted[start] + length]
            return () if token == SEPARATOR else ((token, ONCE),)
        # They are sorted by what follows, so equals are neighbours, and evenly spaced ones stand for all.
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

    def _step(self, ranges: Ranges, token: int) -> Ranges:
        """The suffixes that occur, one token on: those of before with the token behind them, and the token alone."""
        longer = []
        for before in (*ranges, self._everything):
            if before[0] < MAX_MATCH:
                found = self._known_ranges.get((before, token))
                if found is None:
                    found = self._narrowed(*before, token)
                    _remember(self._known_ranges, (before, token), found)
                if found[1] < found[2]:
                    longer.append(found)
        return tuple(longer)

    def _narrowed(self, length: int, start: int, stop: int, token: int) -> Range:
        """The part of a range whose suffixes have `token` behind their first `length` ones; it may be empty."""
        text, order = self._text, self._sorted

        def behind(position: int) -> int:
            return text[position + length]

        start = bisect_left(order, token, start, stop, key=behind)
        # Most ranges are short: look for the end nearby before halving the rest.
        near = min(start + 4, stop)
        if near < stop and behind(order[near]) == token:
            near = stop
        return length + 1, start, bisect_right(order, token, start, near, key=behind)


def _remember(known: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    """Keep the last answers: the text does not change, and short matches come again and again."""
    if len(known) >= _MAX_KNOWN:
        known.popitem(last=False)
    known[key] = value

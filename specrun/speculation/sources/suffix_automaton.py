"""Guess what followed the longest suffix that occurred in the text before (SAM decoding, arXiv 2411.10666).

A state of a suffix automaton stands for all substrings that end at the same positions; its link leads to the state of
their longest suffix that ends at more positions. It grows with the text, in O(1) amortised time and by at most two
states a token.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache

import numpy as np

# Tokens of the longest match. Longer ones predict no better, and cost O(n) a token in a text that repeats a token.
MAX_MATCH = 32

# Followers rank by count / (age + _AGE_OFFSET), where age is the distance in tokens to the last occurrence. The first
# was the next token in 44, 55 and 79 % of cases in code, prose and JSON, the most recent one in 42, 47 and 78 %, and
# the most frequent one in 43, 54 and 78 %. Offsets of 20 and 200 did as well.
_AGE_OFFSET = 60

# The class of evidence of a guess is `6 * bucket + share`, with the bucket of the length of the match that the token
# followed, and its share: how many of the occurrences of the longest match the token followed.
_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)  # shortest match, in tokens, of each bucket of lengths

# Shares, weakest first. The token followed: only a shorter match; at most half of the occurrences; at most half, but it
# ranks first; the only occurrence; more than half; all of several occurrences.
SHORTER, FEW, FIRST, ONCE, MOST, ALWAYS = range(6)


def weakest(length: int) -> int:
    """The class of the weakest share, of a token that followed a match of `length` tokens."""
    return 6 * (bisect_right(_LENGTHS, length) - 1)


def _shares(counts: Sequence[int]) -> list[int]:
    """The share of each token that followed the longest match. counts: how often each did, best-ranked first."""
    if len(counts) == 1:
        return [ALWAYS if counts[0] > 1 else ONCE]
    half = sum(counts) / 2
    result = [MOST if count > half else FEW for count in counts]
    if result and result[0] == FEW:
        result[0] = FIRST
    return result


# About how often guesses of each class were right in samples of code, prose and JSON, measured for matches of one token
# (`_SHORT`) and of eight and more (`_LONG`), interpolated between them.
_SHORT = np.array([0.02, 0.05, 0.17, 0.35, 0.33, 0.7])
_LONG = np.array([0.01, 0.03, 0.19, 0.9, 0.83, 0.98])
_PRIOR = np.concatenate([_SHORT + (_LONG - _SHORT) * min(i / 5, 1.0) for i in range(len(_LENGTHS))])

_ROOT = 0

# (state, length): a suffix of `length` tokens (at most MAX_MATCH) that is one of the state's substrings.
Match = tuple[int, int]


class SuffixAutomaton:
    """A source over the committed text, prompt and output."""

    prior = _PRIOR

    def __init__(self) -> None:
        # Both hold until the text goes on.
        self._after = cache(self._match_after)
        self._followers = cache(self._rank_followers)
        self.reset()

    def reset(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        # Number of occurrences of a state's substrings, and where the last ends; for up to MAX_MATCH + 1 tokens only.
        self._count = [0]
        self._last_end = [0]
        self._whole = _ROOT  # the state of the whole text
        self._n_tokens = 0
        # The state and length of the longest suffix of up to MAX_MATCH + 1 tokens.
        self._suffix, self._suffix_length = _ROOT, 0
        self._end: Match = (_ROOT, 0)  # of the committed text
        self._after.cache_clear()
        self._followers.cache_clear()

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._append(token)
            self._count_suffixes(token)
        self._end = self._bounded(self._suffix, self._suffix_length)
        self._after.cache_clear()
        self._followers.cache_clear()

    def guesses(self, path: Sequence[int], count: int) -> dict[int, int]:
        """Tokens that followed the longest suffix, best-ranked first, then the followers of shorter suffixes."""
        guesses: dict[int, int] = {}
        state, length = self._after(tuple(path))
        while state != _ROOT:
            evidence, is_longest = weakest(length), not guesses
            for token, share in self._followers(state):
                if token not in guesses:
                    guesses[token] = evidence + (share if is_longest else SHORTER)
                    if len(guesses) == count:
                        return guesses
            state = self._link[state]
            length = self._length[state]
        return guesses

    def _rank_followers(self, state: int) -> list[tuple[int, int]]:
        """(token, share) of the tokens that followed a state's substrings, best-ranked first."""
        counts, last_ends, now = self._count, self._last_end, self._n_tokens + _AGE_OFFSET
        following = self._next[state].items()
        ranked = [(counts[after] / (now - last_ends[after]), counts[after], token) for token, after in following]
        ranked.sort(reverse=True)
        return list(zip([token for _, _, token in ranked], _shares([n for _, n, _ in ranked]), strict=True))

    def _match_after(self, path: tuple[int, ...]) -> Match:
        return self._step(self._after(path[:-1]), path[-1]) if path else self._end

    def _step(self, match: Match, token: int) -> Match:
        """The longest suffix of the match and one more drafted `token` that occurs in the committed text."""
        state, length = match
        while token not in self._next[state]:
            if state == _ROOT:
                return _ROOT, 0
            state = self._link[state]
            length = self._length[state]
        return self._bounded(self._next[state][token], length + 1)

    def _bounded(self, state: int, length: int) -> Match:
        """The match of a state's substring of `length` tokens, shortened to its last MAX_MATCH tokens."""
        if length <= MAX_MATCH:
            return self._holder(state, length), length
        return self._holder(state, MAX_MATCH), MAX_MATCH

    def _holder(self, state: int, length: int) -> int:
        """The state of the last `length` tokens of a state's longest substring."""
        while state != _ROOT and self._length[self._link[state]] >= length:
            state = self._link[state]
        return state

    def _append(self, token: int) -> None:
        """Append a token: add a state for the suffixes that occur for the first time."""
        new = self._add_state(self._length[self._whole] + 1, {}, _ROOT, 0, 0)
        state = self._whole
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state >= 0:
            self._link[new] = self._split(state, token)
        self._whole = new
        self._n_tokens += 1

    def _split(self, state: int, token: int) -> int:
        """The state whose longest substring is that of `state` followed by `token`, split off if there is none yet."""
        after = self._next[state][token]
        length = self._length[state] + 1
        if self._length[after] == length:
            return after
        following, link = self._next[after].copy(), self._link[after]
        shorter = self._add_state(length, following, link, self._count[after], self._last_end[after])
        self._link[after] = shorter
        while state >= 0 and self._next[state].get(token) == after:
            self._next[state][token] = shorter
            state = self._link[state]
        return shorter

    def _add_state(self, length: int, following: dict[int, int], link: int, count: int, last_end: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._count.append(count)
        self._last_end.append(last_end)
        return len(self._next) - 1

    def _count_suffixes(self, token: int) -> None:
        """Count one more occurrence of every suffix of up to MAX_MATCH + 1 tokens."""
        # `_append` may have moved the last suffix to a new state.
        state = self._next[self._holder(self._suffix, self._suffix_length)][token]
        length = min(self._suffix_length + 1, MAX_MATCH + 1)
        self._suffix = state = self._holder(state, length)
        self._suffix_length = length
        while state != _ROOT:
            self._count[state] += 1
            self._last_end[state] = self._n_tokens
            state = self._link[state]

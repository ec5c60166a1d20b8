"""Guess what followed the longest suffix that occurred in the text before (SAM decoding, arXiv 2411.10666).

A state of a suffix automaton stands for all substrings that end at the same positions; its link leads to the state of
their longest suffix that ends at more positions. It grows with the text, in O(1) amortised time and by at most two
states a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from specrun.speculation.sources.source import N_EVIDENCE, Guess, guesses_after, shares

# Tokens of the longest match. Longer ones predict no better, and cost O(n) a token in a text that repeats a token.
MAX_MATCH = 32

# Followers rank by count / (age + _AGE_OFFSET), where age is the distance in tokens to the last occurrence. The first
# was the next token in 44, 55 and 79 % of cases in code, prose and JSON, the most recent one in 42, 47 and 78 %, and
# the most frequent one in 43, 54 and 78 %. Offsets of 20 and 200 did as well.
_AGE_OFFSET = 60

_ROOT = 0

# (state, length): a suffix of `length` tokens (at most MAX_MATCH) that is one of the state's substrings.
Match = tuple[int, int]


class SuffixAutomaton:
    """A source over the committed text, prompt and output. Evidence: see `source.py`."""

    n_evidence = N_EVIDENCE

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

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """Tokens that followed the longest suffix, best-ranked first, then the followers of shorter suffixes."""
        return guesses_after(self._matches(path), count)

    def _matches(self, path: Sequence[int]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        state, length = self._after(tuple(path))
        while state != _ROOT:
            yield length, self._followers(state)
            state = self._link[state]
            length = self._length[state]

    def _rank_followers(self, state: int) -> list[tuple[int, int]]:
        """(token, share) of the tokens that followed a state's substrings, best-ranked first."""
        counts, last_ends, now = self._count, self._last_end, self._n_tokens + _AGE_OFFSET
        following = self._next[state].items()
        ranked = [(counts[after] / (now - last_ends[after]), counts[after], token) for token, after in following]
        ranked.sort(reverse=True)
        return list(zip([token for _, _, token in ranked], shares([n for _, n, _ in ranked]), strict=True))

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

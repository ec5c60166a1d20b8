"""The longest match: what followed the longest suffix that the text has had before (SAM decoding, arXiv 2411.10666).

A suffix automaton has a state for each set of substrings that end at the same places, and for each state a link to the
longest suffix that ends at more places. It is built online, O(1) amortised a token, and at most two states a token.
"""

from __future__ import annotations

from collections.abc import Sequence

from specrun.speculation.sources.evidence import N_EVIDENCE, SHORTER, base_evidence, shares
from specrun.speculation.sources.source import Guess, PathStates

# Longer matches are as good as this one. The bound keeps a text of one repeated token from costing O(n) a token.
MAX_MATCH = 32

# Followers rank by how often they came over how long ago, in tokens, the last one did. The first of them was the next
# token in 44, 55 and 79 % of code, prose and JSON; the most recent was in 42, 47 and 78 %, the most frequent in 43, 54
# and 78 %. The offset of the age may as well be 20 or 200.
_AGE_OFFSET = 60

_ROOT = 0
_EVIDENCE = base_evidence(MAX_MATCH)

Match = tuple[int, int]
"""A state and the length of its substring that is the suffix: at most the state's own, and at most MAX_MATCH."""


class SuffixAutomaton:
    """A source over the committed text alone, prompt and output.

    Evidence: see `evidence.py`.
    """

    name = "suffix automaton"
    n_evidence = N_EVIDENCE

    def __init__(self) -> None:
        self._paths: PathStates[Match] = PathStates((_ROOT, 0), self._step)
        self.reset()

    def reset(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        # How often a state's substrings occur, and the end of the last: where they have up to MAX_MATCH + 1 tokens.
        self._count = [0]
        self._last_end = [0]
        self._whole = _ROOT  # the state of the whole text
        self._n_tokens = 0
        # The state of the longest suffix of up to MAX_MATCH + 1 tokens, and that suffix's length.
        self._suffix, self._suffix_length = _ROOT, 0
        self._paths.restart((_ROOT, 0))
        self._known_followers: dict[int, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        """Tokens committed."""
        return self._n_tokens

    @property
    def n_states(self) -> int:
        """At most twice the tokens."""
        return len(self._next)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._append(token)
            self._count_suffixes(token)
        self._paths.restart(self._bounded(self._suffix, self._suffix_length))
        self._known_followers = {}

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """Tokens that followed the longest suffix, the frequent and recent ones first; then those of shorter ones."""
        state, length = self._paths.after(path)
        # The end of the text is an occurrence of its suffixes that nothing follows yet.
        while state != _ROOT and not self._next[state]:
            state = self._link[state]
            length = self._length[state]
        found: dict[int, Guess] = {}
        longest = state
        while state != _ROOT:
            evidence = _EVIDENCE[length]
            for token, share in self._followers(state):
                if token not in found:
                    found[token] = Guess(token, evidence + (share if state == longest else SHORTER))
                    if len(found) == count:
                        return list(found.values())
            state = self._link[state]
            length = self._length[state]
        return list(found.values())

    def _followers(self, state: int) -> list[tuple[int, int]]:
        """The tokens that followed a state's substrings, the frequent and recent ones first, and the share of each."""
        known = self._known_followers.get(state)
        if known is None:
            known = self._known_followers[state] = self._rank_followers(state)
        return known

    def _rank_followers(self, state: int) -> list[tuple[int, int]]:
        counts, last_ends, now = self._count, self._last_end, self._n_tokens + _AGE_OFFSET
        following = self._next[state].items()
        ranked = [(counts[after] / (now - last_ends[after]), counts[after], token) for token, after in following]
        ranked.sort(reverse=True)
        return list(zip([token for _, _, token in ranked], shares([n for _, n, _ in ranked]), strict=True))

    def _step(self, match: Match, token: int) -> Match:
        """The longest suffix that the committed text holds, one drafted token on."""
        state, length = match
        while token not in self._next[state]:
            if state == _ROOT:
                return _ROOT, 0
            state = self._link[state]
            length = self._length[state]
        return self._bounded(self._next[state][token], length + 1)

    def _bounded(self, state: int, length: int) -> Match:
        """The state of the last MAX_MATCH tokens of a state's substring of `length` tokens."""
        if length <= MAX_MATCH:
            return self._holder(state, length), length
        return self._holder(state, MAX_MATCH), MAX_MATCH

    def _holder(self, state: int, length: int) -> int:
        """The state of the last `length` tokens of a state's substrings, which are no shorter."""
        while state != _ROOT and self._length[self._link[state]] >= length:
            state = self._link[state]
        return state

    def _append(self, token: int) -> None:
        """One token more: the states of the suffixes that are new with it."""
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
        """The state of a state's longest substring with `token` behind it, and of nothing longer."""
        after = self._next[state][token]
        length = self._length[state] + 1
        if self._length[after] == length:
            return after
        shorter = self._add_state(
            length, self._next[after].copy(), self._link[after], self._count[after], self._last_end[after]
        )
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
        """Note that the suffixes of up to MAX_MATCH + 1 tokens have occurred once more."""
        # `_append` may have moved the suffix to a state of its own.
        state = self._next[self._holder(self._suffix, self._suffix_length)][token]
        length = min(self._suffix_length + 1, MAX_MATCH + 1)
        self._suffix = state = self._holder(state, length)
        self._suffix_length = length
        while state != _ROOT:
            self._count[state] += 1
            self._last_end[state] = self._n_tokens
            state = self._link[state]

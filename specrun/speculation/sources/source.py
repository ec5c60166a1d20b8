"""The interface of draft sources, which guess the next tokens of a text without a draft model."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that could be next."""

    token: int
    evidence: int  # class, from 0 to n_evidence - 1 of the source, for which `SourceSet` counts how often it is right


class Source(Protocol):
    """Guesses what follows a text. The same calls in the same order give the same guesses."""

    n_evidence: int  # number of classes of evidence

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens to the text: first the prompt, then what each pass committed."""
        ...

    def reset(self) -> None:
        """A new text begins. What the source took from other texts stays."""
        ...

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """At most `count` (1 or more) distinct tokens that could follow the committed text and `path`, best first."""
        ...


# Classes of evidence of sources that match text. The class of a guess depends on the length of the match that the token
# followed, and on its share: how many of the occurrences of the longest match the token followed.

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)  # shortest match, in tokens, of each bucket of lengths

# Shares, weakest first. The token followed: only a shorter match; at most half of the occurrences; at most half, but it
# ranks first; the only occurrence; more than half; all of several occurrences.
SHORTER, FEW, FIRST, ONCE, MOST, ALWAYS = range(6)
_N_SHARES = 6

# Number of classes. A class is `6 * bucket + share`, with the bucket of the length of the match.
N_EVIDENCE = _N_SHARES * len(_LENGTHS)


def weakest(length: int) -> int:
    """The class of the weakest share, of a token that followed a match of `length` tokens."""
    return _N_SHARES * (bisect_right(_LENGTHS, length) - 1)


def guesses_after(matches: Iterable[tuple[int, Iterable[tuple[int, int]]]], count: int) -> list[Guess]:
    """At most `count` guesses.

    matches: the length of each match, longest first, and what followed it, best first, as (token, share).
    """
    guesses: dict[int, Guess] = {}
    for length, followers in matches:
        evidence, is_longest = weakest(length), not guesses
        for token, share in followers:
            if token not in guesses:
                guesses[token] = Guess(token, evidence + (share if is_longest else SHORTER))
                if len(guesses) == count:
                    return list(guesses.values())
    return list(guesses.values())


def shares(counts: Sequence[int]) -> list[int]:
    """The share of each token that followed the longest match. counts: how often each did, best-ranked first."""
    if len(counts) == 1:
        return [ALWAYS if counts[0] > 1 else ONCE]
    half = sum(counts) / 2
    result = [MOST if count > half else FEW for count in counts]
    if result and result[0] == FEW:
        result[0] = FIRST
    return result


# float64[N_EVIDENCE]: about how often guesses of each class were right in samples of code, prose and JSON, measured for
# matches of one token (`_SHORT`) and of eight and more (`_LONG`), interpolated between them.
_SHORT = np.array([0.02, 0.05, 0.17, 0.35, 0.33, 0.7])
_LONG = np.array([0.01, 0.03, 0.19, 0.9, 0.83, 0.98])
PRIOR = np.concatenate([_SHORT + (_LONG - _SHORT) * min(i / 5, 1.0) for i in range(len(_LENGTHS))])


def last_tokens(text: Sequence[int], path: Sequence[int], count: int) -> tuple[int, ...]:
    """The last `count` tokens (or all, if there are fewer) of a committed text followed by a drafted path."""
    missing = count - len(path)
    if missing <= 0:
        return tuple(path[len(path) - count :])
    return (*text[max(len(text) - missing, 0) :], *path)

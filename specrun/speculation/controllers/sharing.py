"""Whether texts that share a pass draft: by the tokens a second of all together, as they are seen."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

# All chosen by hand.
_DECAY = 0.9  # factor on what was seen after each pass, so that about the last ten count
_TRIED = 4  # passes after which a way is known
_TRIED_AGAIN = 48  # passes after which the slower way is tried again,
_TRIAL = 2  # for so many passes


@dataclass
class _Way:
    """What recent passes of one way brought."""

    tokens: float = 0.0
    ms: float = 0.0
    passes: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.ms if self.ms else 0.0

    def record(self, n_tokens: int, ms: float) -> None:
        self.tokens = _DECAY * self.tokens + n_tokens
        self.ms = _DECAY * self.ms + ms
        self.passes += 1


class Sharing:
    """Chooses, for each number of texts, whether they draft. It begins with drafting, as costs size the trees."""

    def __init__(self) -> None:
        self._ways = defaultdict[tuple[int, bool], _Way](_Way)  # by the number of texts, and whether they draft
        self._since = Counter[int]()  # passes of so many texts since the slower way was tried
        self._drafts = True  # what was decided last

    def drafts(self, n_texts: int, plain: float) -> bool:
        """Whether the texts of the next pass draft. plain: tokens per millisecond that are expected without."""
        drafting = self._ways[n_texts, True]
        wins = drafting.rate > self._plain_rate(n_texts, plain)
        self._drafts = drafting.passes < _TRIED or wins != (self._since[n_texts] >= _TRIED_AGAIN)
        return self._drafts

    def rate(self, n_texts: int, plain: float) -> float:
        """Tokens per millisecond of all texts together, which another node must keep up with. plain: as above."""
        return max(self._plain_rate(n_texts, plain), self._ways[n_texts, True].rate)

    def record(self, n_texts: int, n_tokens: int, ms: float, reading_ms: float = 0.0) -> None:
        """Learn that the pass for which `drafts` was asked brought so many tokens, and took `ms` with its drafting.

        reading_ms: the part of that in which the draft read prompts. In the first passes that is the price of trying;
        later it is a part of what drafting takes, as new texts come.
        """
        way = self._ways[n_texts, self._drafts]
        way.record(n_tokens, ms if way.passes >= _TRIED else ms - reading_ms)
        self._since[n_texts] = (self._since[n_texts] + 1) % (_TRIED_AGAIN + _TRIAL)

    def _plain_rate(self, n_texts: int, expected: float) -> float:
        plain = self._ways[n_texts, False]
        return plain.rate if plain.passes >= _TRIED else expected

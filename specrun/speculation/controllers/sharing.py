"""Whether texts that share a pass draft: by the tokens a second of all together, as they are seen."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

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


@dataclass
class _Ways:
    """Both ways for one number of texts. since: passes since the slower one was tried."""

    plain: _Way = field(default_factory=_Way)
    drafting: _Way = field(default_factory=_Way)
    since: int = 0

    def plain_rate(self, expected: float) -> float:
        return self.plain.rate if self.plain.passes >= _TRIED else expected


class Sharing:
    """Chooses, for each number of texts, whether they draft. It begins with drafting, as costs size the trees."""

    def __init__(self) -> None:
        self._ways = defaultdict[int, _Ways](_Ways)
        self._drafts = True  # what was decided last

    def drafts(self, n_texts: int, plain: float) -> bool:
        """Whether the texts of the next pass draft. plain: tokens per millisecond that are expected without."""
        ways = self._ways[n_texts]
        wins = ways.drafting.rate > ways.plain_rate(plain)
        self._drafts = ways.drafting.passes < _TRIED or wins != (ways.since >= _TRIED_AGAIN)
        return self._drafts

    def rate(self, n_texts: int, plain: float) -> float:
        """Tokens per millisecond of all texts together, which another node must keep up with. plain: as above."""
        return max(self._ways[n_texts].plain_rate(plain), self._ways[n_texts].drafting.rate)

    def record(self, n_texts: int, n_tokens: int, ms: float) -> None:
        """Learn that the pass for which `drafts` was asked brought so many tokens, and took `ms` with its drafting."""
        ways = self._ways[n_texts]
        (ways.drafting if self._drafts else ways.plain).record(n_tokens, ms)
        ways.since = 0 if ways.since >= _TRIED_AGAIN + _TRIAL - 1 else ways.since + 1

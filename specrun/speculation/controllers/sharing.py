"""Whether texts that share a pass draft: by the tokens a second of all together, as they are seen."""

from __future__ import annotations

from collections import Counter, defaultdict

_DECAY = 0.9  # factor on what was seen after each pass, so that about the last ten count
_TRIED = 4  # passes after which a way is known
# The slower way is tried again after so many passes, for so many: if it is half as fast that costs 4 % of the time.
_TRIED_AGAIN, _TRIAL = 48, 2


class Sharing:
    """Chooses, for each number of texts, whether they draft. It begins with drafting, as costs size the trees."""

    def __init__(self) -> None:
        # Tokens and milliseconds of recent passes, by the number of texts, and whether they draft.
        self._seen = defaultdict[tuple[int, bool], tuple[float, float]](lambda: (0.0, 0.0))
        self._passes = Counter[tuple[int, bool]]()  # all of them
        self._since = Counter[int]()  # passes of so many texts since the slower way was tried
        self._drafts = True  # what was decided last

    def drafts(self, n_texts: int, plain: float) -> bool:
        """Whether the texts of the next pass draft. plain: tokens per millisecond that are expected without."""
        wins = self._rate(n_texts, True, 0.0) > self._rate(n_texts, False, plain)
        is_known = self._passes[n_texts, True] >= _TRIED
        self._drafts = not is_known or wins != (self._since[n_texts] >= _TRIED_AGAIN)
        return self._drafts

    def rate(self, n_texts: int, plain: float) -> float:
        """Tokens per millisecond of all texts together, which another node must keep up with. plain: as above."""
        return max(self._rate(n_texts, False, plain), self._rate(n_texts, True, 0.0))

    def record(self, n_texts: int, n_tokens: int, ms: float, reading_ms: float = 0.0) -> None:
        """Learn that the pass for which `drafts` was asked brought so many tokens, and took `ms` with its drafting.

        reading_ms: the part of that in which the draft read prompts. In the first passes that is the price of trying;
        later it is a part of what drafting takes, as new texts come.
        """
        way = n_texts, self._drafts
        tokens, before = self._seen[way]
        ms -= 0.0 if self._passes[way] >= _TRIED else reading_ms
        self._seen[way] = _DECAY * tokens + n_tokens, _DECAY * before + ms
        self._passes[way] += 1
        self._since[n_texts] = (self._since[n_texts] + 1) % (_TRIED_AGAIN + _TRIAL)

    def _rate(self, n_texts: int, drafts: bool, expected: float) -> float:
        """As it was seen; plain passes must be several, or what is expected counts."""
        tokens, ms = self._seen[n_texts, drafts]
        return tokens / ms if ms and (drafts or self._passes[n_texts, drafts] >= _TRIED) else expected

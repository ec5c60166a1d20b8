"""From tokens to printable text: no broken UTF-8 character, nothing of a stop string, ever comes out."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class TextStream:
    """Turns token ids into text piece by piece.

    token_bytes: the bytes a token stands for. stops: strings that end the text and are not part of it. Text that could
    still become a stop string is held back until the next token decides.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._stops = [stop for stop in stops if stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that `token` sets free. After a stop string was met, `stopped` is true and the text is over."""
        self._held += self._decoder.decode(self._token_bytes(token))
        return self._release(final=False)

    def finish(self) -> str:
        """What was still held back; an unfinished character becomes U+FFFD."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(final=True)

    def _release(self, final: bool) -> str:
        found = min((at for at in map(self._held.find, self._stops) if at >= 0), default=None)
        if found is not None:
            self.stopped = True
            text, self._held = self._held[:found], ""
            return text
        keep = 0 if final else self._undecided()
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _undecided(self) -> int:
        """Length of the longest tail that is the beginning of a stop string."""
        longest = max(map(len, self._stops), default=0)
        for length in range(min(longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0

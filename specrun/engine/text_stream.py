"""Turning tokens into text, without broken UTF-8 characters and without the stop text or its beginning."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class TextStream:
    """Turns token ids into text. What may be the beginning of a stop text is held back until later tokens decide.

    token_bytes: gives the bytes of a token.
    stops: stop texts; the text ends before the first of them.
    stopped: whether a stop text was met.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._stops = [stop for stop in stops if stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token, and return the text that is certain now."""
        self._held += self._decoder.decode(self._token_bytes(token))
        return self._release(final=False)

    def finish(self) -> str:
        """The text that is still held back; an unfinished character becomes U+FFFD."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(final=True)

    def _release(self, final: bool) -> str:
        stop_at = min((at for at in map(self._held.find, self._stops) if at >= 0), default=None)
        if stop_at is not None:
            self.stopped = True
            text, self._held = self._held[:stop_at], ""
            return text
        keep = 0 if final else undecided(self._held, self._stops)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def undecided(text: str, markers: Sequence[str]) -> int:
    """Length of the longest tail of `text` that is the beginning, but not all, of a text in `markers`."""
    longest = max(map(len, markers), default=0)
    lengths = range(min(longest - 1, len(text)), 0, -1)
    return next((n for n in lengths if any(marker.startswith(text[-n:]) for marker in markers)), 0)

"""Log-probabilities go out with the text of their tokens: an answer holds text back that may begin a stop text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from specrun.sampling.logprobs import TokenLogprob


class Released:
    """Gives out the tokens of an answer once the first byte of their text is given out.

    token_bytes: gives the bytes of a token. Tokens of a stop text, which is never given out, never are either.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()  # where each begins, in bytes
        self._n_written = 0  # bytes of all tokens so far
        self._n_released = 0  # bytes of text given out

    def push(self, tokens: Sequence[TokenLogprob], text: str) -> tuple[TokenLogprob, ...]:
        """The tokens whose text begins in the text so far. tokens: further ones. text: that is given out now."""
        for one in tokens:
            self._waiting.append((self._n_written, one))
            self._n_written += len(self._token_bytes(one.token))
        self._n_released += len(text.encode())
        ready = []
        while self._waiting and self._waiting[0][0] < self._n_released:
            ready.append(self._waiting.popleft()[1])
        return tuple(ready)

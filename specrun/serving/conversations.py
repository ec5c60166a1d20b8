"""Several conversations in turn: what the caches held of the others is kept in RAM, within a bound.

The present conversation is in the caches, and costs nothing. It is copied out when another one takes its place, and
copied in again when that is longer than what the caches share with the new prompt. A prompt that the caches share at
least half of what they hold with belongs to the same conversation, and nothing is copied.
"""

from __future__ import annotations

from specrun.engine import saved_caches
from specrun.engine.decoding import Engine
from specrun.engine.saved_caches import SavedCaches
from specrun.errors import LlamaError
from specrun.llama.prefix import common_prefix

_FEWEST = 16  # tokens that are worth a copy: fewer are read in one short pass


class Conversations:
    """Those of one engine. most_bytes: of all copies together; 0 keeps none.

    n_restored: conversations that came back.
    """

    def __init__(self, engine: Engine, most_bytes: int) -> None:
        self._engine = engine
        self._most_bytes = most_bytes
        self._kept: list[SavedCaches] = []  # the one used last at the end
        self.n_restored = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(one.n_bytes for one in self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def take_up(self, prompt: list[int]) -> None:
        """Bring into the caches what is kept of `prompt`, if they do not hold as much of it themselves.

        To be called between texts. What fails leaves empty caches, or those as they are.
        """
        held = self._engine.target.held()
        n_held = held.reusable(prompt)
        kept = max(self._kept, key=lambda one: one.held.reusable(prompt), default=None)
        comes_back = kept is not None and kept.held.reusable(prompt) >= n_held + _FEWEST
        if comes_back or 2 * n_held < held.n_cached:
            self._keep_present()
        if kept is None or not comes_back:
            return
        try:
            saved_caches.restore(self._engine, kept)
        except LlamaError:
            self._engine.reset()
            return
        self.n_restored += 1
        if kept in self._kept:
            self._kept.remove(kept)
            self._kept.append(kept)

    def set_aside(self) -> None:
        """Keep the present conversation, and leave empty caches."""
        self._keep_present()
        self._engine.reset()

    def _keep_present(self) -> None:
        """Copy what the caches hold, unless it is too short or too large, or kept already."""
        held = self._engine.target.held()
        if not self._most_bytes or held.n_cached < _FEWEST:
            return
        if any(common_prefix(one.held.tokens, held.tokens) == len(held.tokens) for one in self._kept):
            return
        n_bytes = saved_caches.size(self._engine)
        if n_bytes > self._most_bytes:
            return
        # A copy of the same conversation, when it was shorter, is of no use any more.
        self._kept = [
            one for one in self._kept if common_prefix(one.held.tokens, held.tokens) < len(one.held.tokens) - 1
        ]
        while self.n_bytes + n_bytes > self._most_bytes:
            del self._kept[0]
        try:
            saved = saved_caches.save(self._engine)
        except (LlamaError, MemoryError):
            return
        if saved:
            self._kept.append(saved)

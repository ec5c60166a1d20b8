"""Several conversations: some are in the caches, and what the caches held of others is kept in RAM, within a bound.

A conversation in a lane costs nothing. It is copied out when another one takes its place, and copied in again when that
is longer than what the lane shares with the new prompt. A prompt that a lane shares at least half of what it holds with
belongs to the same conversation, and nothing is copied. Conversations whose answers are written at the same time are in
lanes of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specrun.engine import saved_caches
from specrun.engine.decoding import Engine
from specrun.engine.saved_caches import SavedCaches
from specrun.errors import LlamaError
from specrun.llama.batch import common_prefix

_FEWEST = 16  # tokens that are worth a copy: fewer are read in one short pass


class Conversations:
    """Those of the engines of one model.

    most_bytes: of all copies together; 0 keeps none.
    n_restored: conversations that came back.
    """

    def __init__(self, engines: Sequence[Engine], most_bytes: int) -> None:
        self._first = engines[0]
        self._engines = list(engines)  # the one used last at the end
        self._most_bytes = most_bytes
        self._kept: list[SavedCaches] = []  # the one used last at the end
        self.n_restored = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(one.n_bytes for one in self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def lane_for(self, prompt: list[int], busy: Collection[Engine]) -> Engine:
        """The engine that shall write the answer to `prompt`. busy: those that write others; one must be left.

        While nothing is written it is the first one, which has room for larger trees; what others hold is copied out,
        and comes back into the first one if it belongs to the prompt. Otherwise it is the one that holds most of the
        prompt, or an empty one, or the one that was not used for longest.
        """
        if not busy:
            while self.set_one_aside([self._first]):
                pass
        free = [engine for engine in self._engines if engine not in busy]
        lane = self._first
        if busy:
            lane = max(free, key=lambda engine: engine.target.held().reusable(prompt))
            if lane.target.held().reusable(prompt) < _FEWEST:
                lane = next((engine for engine in free if not engine.target.n_cached), free[0])
        self._engines.remove(lane)
        self._engines.append(lane)
        return lane

    def set_one_aside(self, busy: Collection[Engine]) -> bool:
        """Take the conversation that waits longest out of the caches. False if there is none."""
        for engine in self._engines:
            if engine not in busy and engine.target.n_cached:
                self.set_aside(engine)
                return True
        return False

    def take_up(self, engine: Engine, prompt: list[int]) -> None:
        """Bring into the caches of `engine` what is kept of `prompt`, if they do not hold as much of it themselves.

        To be called between texts. What fails leaves empty caches, or those as they are.
        """
        held = engine.target.held()
        n_held = held.reusable(prompt)
        kept = max(self._kept, key=lambda one: one.held.reusable(prompt), default=None)
        comes_back = kept is not None and kept.held.reusable(prompt) >= n_held + _FEWEST
        if comes_back or 2 * n_held < held.n_cached:
            self._keep(engine)
        if kept is None or not comes_back:
            return
        try:
            saved_caches.restore(engine, kept)
        except LlamaError:
            engine.reset()
            return
        self.n_restored += 1
        if kept in self._kept:
            self._kept.remove(kept)
            self._kept.append(kept)

    def set_aside(self, engine: Engine) -> None:
        """Keep the conversation of `engine`, and leave its caches empty."""
        self._keep(engine)
        engine.reset()

    def _keep(self, engine: Engine) -> None:
        """Copy what the caches hold, unless it is too short or too large, or kept already."""
        held = engine.target.held()
        if not self._most_bytes or held.n_cached < _FEWEST:
            return
        if any(common_prefix(one.held.tokens, held.tokens) == len(held.tokens) for one in self._kept):
            return
        n_bytes = saved_caches.size(engine)
        if n_bytes > self._most_bytes:
            return
        # A copy of the same conversation, when it was shorter, is of no use any more.
        self._kept = [
            one for one in self._kept if common_prefix(one.held.tokens, held.tokens) < len(one.held.tokens) - 1
        ]
        while self.n_bytes + n_bytes > self._most_bytes:
            del self._kept[0]
        try:
            saved = saved_caches.save(engine)
        except (LlamaError, MemoryError):
            return
        if saved:
            self._kept.append(saved)

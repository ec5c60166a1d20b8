"""Several texts: some are in the caches, and what the caches held of others is kept in RAM, within a bound.
Below that is the disk, with what is in neither any more (`prompt_states`).

A text in a slot costs nothing. It is copied into RAM when another one takes its place, and copied back when the copy
shares more with a new prompt than the slot does. What another slot holds of a prompt, as a system message, is copied,
too. A prompt that shares at least half of what the slot holds goes on with the same text, and nothing is copied. Texts
that are written at the same time have slots of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from specrun.decoding.engine import Engine, SavedCaches
from specrun.decoding.prompt_states import LONG, PromptStates
from specrun.errors import LlamaError
from specrun.llama.batch import common_prefix

FEWEST = 16  # tokens that are worth a copy: fewer are read in one short pass
# Of the tokens that are copied, the share that must be of the prompt: copying one takes a small part of reading one. By
# hand.
_WORTH = 1 / 16


class Conversations:
    """The texts in the caches of a model's engines, and copies of others.

    most_bytes: bound for all copies together; 0 keeps none. n_restored: conversations that were copied back.
    states: prompts on disk, from which a text takes up what is not here; None where none are kept.
    """

    def __init__(self, engines: Sequence[Engine], most_bytes: int, states: PromptStates | None = None) -> None:
        self._first = engines[0]
        # The latest used is the last in both lists.
        self._engines = list(engines)
        self._most_bytes = most_bytes
        self._kept: list[SavedCaches] = []
        self.states = states
        self._may_be_new = False  # whether something may be in RAM that is not on disk
        self.n_restored = 0

    @property
    def n_bytes(self) -> int:
        return sum(copy.n_bytes for copy in self._kept)

    def slot_for(self, prompt: list[int], busy: Collection[Engine]) -> Engine:
        """The engine that shall write the text to `prompt`. busy: engines that write others, and not all of them.

        While nothing is written it is the first engine, which has room for larger trees; what others hold is copied,
        and comes back into the first engine if it belongs to the prompt. Otherwise it is the free engine that holds
        most of the prompt, or an empty engine, or the least recently used.
        """
        if not busy:
            while self.set_one_aside([self._first]):
                pass
        free = [engine for engine in self._engines if engine not in busy]
        slot = self._first
        if busy:
            slot = max(free, key=lambda engine: engine.target.held().reusable(prompt))
            if slot.target.held().reusable(prompt) < FEWEST:
                slot = next((engine for engine in free if not engine.target.n_cached), free[0])
        self._may_be_new = True
        self._engines.remove(slot)
        self._engines.append(slot)
        return slot

    def set_one_aside(self, busy: Collection[Engine]) -> bool:
        """Take the conversation that waits longest out of the caches. False if there is none."""
        engine = next((engine for engine in self._engines if engine not in busy and engine.target.n_cached), None)
        if engine is not None:
            self.set_aside(engine)
        return engine is not None

    def take_up(self, engine: Engine, prompt: list[int], make_room: Callable[[int], bool]) -> None:
        """Copy what is kept, or what another engine holds, of `prompt` into the caches of `engine`, if they do not hold
        as much of it themselves, and make room for the rest.

        make_room: makes room for so many tokens in the caches, and says whether there is. Call it between texts. After
        a failure the caches are empty, or as they were.
        """
        held = engine.target.held()
        n_held = held.reusable(prompt)
        copy = self._best_copy(engine, prompt, n_held)
        if copy or 2 * n_held < held.n_cached:
            self._keep(engine)
        if copy:
            engine.reset()
            if make_room(len(copy.held.tokens)):
                try:
                    engine.restore(copy)
                except LlamaError:
                    engine.reset()
            if copy in self._kept:
                self._kept.remove(copy)
                self._kept.append(copy)
                self.n_restored += 1
        make_room(len(prompt) - engine.target.held().reusable(prompt))

    def _best_copy(self, engine: Engine, prompt: list[int], n_held: int) -> SavedCaches | None:
        """The copy that has most of `prompt`; one is made if another engine holds most. None if none is worth it."""
        kept = max(self._kept, key=lambda copy: copy.held.reusable(prompt), default=None)
        n_kept = kept.held.reusable(prompt) if kept else 0
        others = [other for other in self._engines if other is not engine]
        best = max(others, key=lambda other: other.target.held(is_copied=True).reusable(prompt), default=None)
        if best is not None:
            beside = best.target.held(is_copied=True)
            n_beside = beside.reusable(prompt)
            if n_beside >= max(n_kept, n_held + FEWEST) and n_beside - n_held >= _WORTH * beside.n_cached:
                with suppress(LlamaError, MemoryError):
                    return best.save()
        return kept if n_kept >= n_held + FEWEST else None

    def set_aside(self, engine: Engine) -> None:
        """Keep a copy of the conversation of `engine`, and empty its caches."""
        self._keep(engine)
        engine.reset()

    def write_some(self, least: int = LONG, waits: bool = False) -> None:
        """Keep on disk what is not there yet of the conversations, if that pays. Call it while nothing is written.

        The arguments are those of `PromptStates.keep`.
        """
        if self.states and (self._may_be_new or waits):
            sources: list[Engine | SavedCaches] = [*self._kept, *self._engines]
            is_busy = [self.states.keep(source, least, waits) for source in sources]
            self._may_be_new = any(is_busy)

    def _keep(self, engine: Engine) -> None:
        """Copy what the caches hold, unless it is too short, too large or kept already."""
        held = engine.target.held()
        if held.n_cached < FEWEST:
            return
        n_bytes = engine.n_saved_bytes
        if n_bytes > self._most_bytes:
            if self.states:
                self.states.keep(engine)
            return
        copies = [(copy, len(copy.held.tokens), common_prefix(copy.held.tokens, held.tokens)) for copy in self._kept]
        if any(shared == len(held.tokens) for _, _, shared in copies):
            return
        # A copy from when the same conversation was shorter has no use any more.
        self._kept = [copy for copy, n_tokens, shared in copies if shared < n_tokens - 1]
        while self.n_bytes + n_bytes > self._most_bytes:
            oldest = self._kept.pop(0)
            if self.states:
                self.states.keep(oldest)
        try:
            saved = engine.save()
        except (LlamaError, MemoryError):
            return
        if saved:
            self._kept.append(saved)

"""Texts that take turns in the slots of a model: which of them the next pass has, which wait for room, and what is kept
in RAM, within a bound, of those that nobody writes. Below that is the disk, with what is in neither (`prompt_states`).

A text in a slot costs nothing. It is copied into RAM when another one takes its place, and copied back when the copy
shares more with a new prompt than the slot does. What another slot holds of a prompt, as a system message, is copied,
too. A prompt that shares at least half of what the slot holds goes on with the same text, and nothing is copied. Texts
that are written at the same time have slots of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from specrun.decoding.engine import Engine, SavedCaches, Slots
from specrun.decoding.generation import Generation, StepOfText
from specrun.decoding.passes import Passes
from specrun.decoding.prompt_states import LONG, PromptStates
from specrun.errors import ContextFullError, LlamaError
from specrun.llama.batch import common_prefix

FEWEST = 16  # tokens that are worth a copy: fewer are read in one short pass
# Of the tokens that are copied, the share that must be of the prompt: copying one takes a small part of reading one.
_WORTH = 1 / 16
# Tokens of an answer for which there must be room when it begins beside others: most answers are longer, but few are at
# their longest at the same time, and an answer that finds no room waits for another to end.
_FIRST_TOKENS = 256
_NODES = 16  # room is made for trees of so many nodes


class Conversations:
    """The texts in the caches of a model's engines, and copies of others.

    engines: the latest used is the last, as of the copies. most_bytes: bound for all copies together; 0 keeps none.
    states: prompts on disk, from which a text takes up what is not here; None where none are kept.
    """

    def __init__(self, engines: Sequence[Engine], most_bytes: int, states: PromptStates | None = None) -> None:
        self._first = engines[0]
        self.engines = list(engines)
        self._most_bytes = most_bytes
        self._kept: list[SavedCaches] = []
        self.states = states
        self._may_be_new = False  # whether something may be in RAM that is not on disk

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
        free = [engine for engine in self.engines if engine not in busy]
        slot = self._first
        if busy:
            slot = max(free, key=lambda engine: engine.target.held().reusable(prompt))
            if slot.target.held().reusable(prompt) < FEWEST:
                slot = next((engine for engine in free if not engine.target.n_cached), free[0])
        self._may_be_new = True
        self.engines.remove(slot)
        self.engines.append(slot)
        return slot

    def set_one_aside(self, busy: Collection[Engine]) -> bool:
        """Take the conversation that waits longest out of the caches. False if there is none."""
        engine = next((engine for engine in self.engines if engine not in busy and engine.target.n_cached), None)
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
        make_room(len(prompt) - engine.target.held().reusable(prompt))

    def _best_copy(self, engine: Engine, prompt: list[int], n_held: int) -> SavedCaches | None:
        """The copy that has most of `prompt`; one is made if another engine holds most. None if none is worth it."""
        kept = max(self._kept, key=lambda copy: copy.held.reusable(prompt), default=None)
        n_kept = kept.held.reusable(prompt) if kept else 0
        others = [other for other in self.engines if other is not engine]
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
            sources: list[Engine | SavedCaches] = [*self._kept, *self.engines]
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


class SlotText:
    """A text in a slot.

    engine: of the slot. generation: its passes, once the text has begun. waits: whether it is interrupted because there
    is no room for all texts.
    """

    generation: Generation

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.waits = False
        # While it waits: its tokens, and what the caches held of them.
        self._text: list[int] = []
        self._saved: SavedCaches | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens of the text so far, with its prompt."""
        return len(self._text if self.waits else self.engine.target.tokens)

    def wait(self) -> None:
        """Make room for other texts until `go_on`."""
        target = self.engine.target
        self._text = list(target.tokens)
        with suppress(LlamaError, MemoryError):
            self._saved = None if target.n_chunk else self.engine.save()
        self.engine.reset()
        self.waits = True

    def go_on(self) -> None:
        """Go on where `wait` interrupted the text. It is read again if there was no memory for a copy."""
        self.waits = False
        saved, self._saved = self._saved, None
        if saved:
            with suppress(LlamaError):
                self.engine.restore(saved)
                return
        self.engine.target.begin_prompt(self._text)


Text = TypeVar("Text", bound=SlotText)


class Together(Generic[Text]):
    """The texts that are being written in the slots of a model.

    A caller adds texts to `texts` and takes those out that are over. The methods raise what llama.cpp raises.

    texts: the oldest first. conversations: what else is in the caches, which may have to leave them.
    """

    def __init__(self, slots: Slots, conversations: Conversations) -> None:
        self.texts: list[Text] = []
        self._slots = slots
        self._conversations = conversations
        self._passes = Passes()

    @property
    def busy(self) -> list[Engine]:
        """The engines that write a text, those of texts that wait included."""
        return [text.engine for text in self.texts]

    @property
    def is_full(self) -> bool:
        """Whether no further text may begin, because all engines are taken or a text waits for room."""
        return len(self.texts) >= len(self._conversations.engines) or any(text.waits for text in self.texts)

    def fits(self, n_prompt: int, most_tokens: int | None) -> bool:
        """Whether there is room for another text beside those that are being written. Alone, every text has room.

        n_prompt: tokens of its prompt. most_tokens: of its answer; None for no limit.
        """
        n = n_prompt + min(most_tokens or _FIRST_TOKENS, _FIRST_TOKENS)
        return not self.texts or self._n_tokens() + n <= self._slots.n_tokens

    def wake(self) -> None:
        """Let texts that wait go on, as far as there is room."""
        for text in [text for text in self.texts if text.waits]:
            if self._n_tokens() + text.n_tokens + _NODES <= self._slots.n_tokens or not self._active():
                self.make_room(text.n_tokens)
                text.go_on()

    def advance(self) -> list[tuple[Text, StepOfText]]:
        """Make a pass over prompts and all texts whose prompts are read, or two passes if they do not fit into it.

        Returns what was written, text by text.
        """
        if len(self.texts) == 1:
            self._let_draft(self.texts[0])
        reading = [text.generation for text in self._active() if text.generation.is_reading]
        writing = self._writing()
        prefills = self._passes.prefills(reading, [text.generation for text in writing]) if reading else []
        if prefills and not self._reads_beside(writing, prefills):
            if self.make_room(sum(prefill.chunk_cells for prefill in prefills)):
                self._passes.read(prefills)
            elif not writing:
                self._give_way()
            if not writing:
                return []  # texts that are read now go on beside the next prompts
            prefills, writing = [], self._writing()
        while writing and not prefills and not self.make_room(_least(writing), _least(writing) + _NODES * len(writing)):
            youngest = self._give_way()
            writing = [text for text in writing if text is not youngest]
        if not writing:
            return []
        steps = self._passes.next_pass([text.generation for text in writing], prefills)
        return [(text, done) for done in steps for text in writing if text.generation is done.text]

    def _let_draft(self, text: Text) -> None:
        """Take all others, which nobody writes, out of the caches, if this text could draft without them."""
        cells = text.engine.target.cells
        while cells.most_back is None and not cells.takes_back and self._conversations.set_one_aside(self.busy):
            pass

    def _give_way(self) -> Text:
        """Let the youngest text wait, and return it. Raises ContextFullError if there is no other."""
        *others, youngest = self._active()
        if not others:
            raise ContextFullError("the text does not fit beside what the caches hold; give a larger --ctx-size")
        youngest.wait()
        return youngest

    def make_room(self, n: int, wanted: int = 0) -> bool:
        """Free `n` cells, for which other texts may leave the caches. Free `wanted` cells if none has to leave.

        Returns False if fewer than `n` are free.
        """
        self._slots.make_room(max(n, wanted))
        while not self._slots.has_room(n) and self._conversations.set_one_aside(self.busy):
            self._slots.make_room(n)
        return self._slots.has_room(n)

    def _reads_beside(self, writing: Sequence[Text], prefills: Sequence[Generation]) -> bool:
        """Whether the pass over these prompts can have the next tokens of all texts, too. Makes room for them."""
        if not writing or not self._passes.fits_with_decoding([text.generation for text in writing], prefills):
            return False
        n = sum(prefill.chunk_cells for prefill in prefills) + _least(writing)
        return self.make_room(n, n + _NODES * len(writing))

    def _n_tokens(self) -> int:
        """Tokens of all texts that are being written and do not wait."""
        return sum(text.n_tokens for text in self._active())

    def _writing(self) -> list[Text]:
        return [text for text in self._active() if not text.generation.is_reading]

    def _active(self) -> list[Text]:
        return [text for text in self.texts if not text.waits]


def _least(writing: Sequence[SlotText]) -> int:
    """Cells that a pass over these texts needs without any drafts."""
    targets = [text.engine.target for text in writing]
    return targets[0].padding.padded(sum(target.n_pending + 1 for target in targets))

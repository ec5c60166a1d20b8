"""Texts that are written together, each in a slot: which of them the next pass has, and which wait for room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from specrun.decoding.engine import Engine, SavedCaches, Slots
from specrun.decoding.generation import Generation, StepOfText
from specrun.decoding.passes import Passes
from specrun.errors import ContextFullError, LlamaError

# Tokens of an answer for which there must be room when it begins beside others: most answers are
# longer, but few are at their longest at the same time, and an answer that finds no room waits for another to end.
_FIRST_TOKENS = 256
_NODES = 16  # room is made for trees of so many nodes


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

    texts: the oldest first. evict: takes one text out of the caches of other engines than those given, which write;
    returns False if there is none.
    """

    def __init__(self, slots: Slots, evict: Callable[[Collection[Engine]], bool]) -> None:
        self.texts: list[Text] = []
        self._slots = slots
        self._evict = evict
        self._passes = Passes()

    @property
    def busy(self) -> list[Engine]:
        """The engines that write a text, those of texts that wait included."""
        return [text.engine for text in self.texts]

    @property
    def is_full(self) -> bool:
        """Whether no further text may begin, because all slots are taken or a text waits for room."""
        return len(self.texts) >= len(self._slots.engines) or any(text.waits for text in self.texts)

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
        while cells.most_back is None and not cells.takes_back and self._evict(self.busy):
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
        while not self._slots.has_room(n) and self._evict(self.busy):
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

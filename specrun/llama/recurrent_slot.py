"""Texts with recurrent states that share one context, and so the passes that write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specrun.llama.context import LlamaContext
from specrun.llama.rollback import RecurrentStates
from specrun.llama.slot_cells import CellLedger, SlotCells


class RecurrentSlot(RecurrentStates, SlotCells):
    """A text with recurrent states among several.

    A pass has one token of each text, or tokens of one text. Only the first slot has a checkpoint, and drafts, as long
    as no other text is in the cache. All others decode plainly, so little is taken back: a text that is over, or the
    end of one whose beginning is used again. These cells are not dead: before the next pass, texts after them move.
    """

    shares_prompts = False
    leaves_holes = True

    def __init__(self, ledger: CellLedger, first: int, checkpoint: int | None) -> None:
        SlotCells.__init__(self, ledger, first, 1, range(0))
        RecurrentStates.__init__(self, ledger.context, first, checkpoint)

    @property
    def takes_back(self) -> bool:
        return self._checkpoint_seq is not None and self.ledger.is_alone(self)

    def checkpoint(self, end: int) -> None:
        self.ledger.close_holes()  # first: a text that moves forgets its checkpoint
        RecurrentStates.checkpoint(self, end)

    def rollback(self, end: int) -> int:
        return self._kept(RecurrentStates.rollback, end)

    def rewind(self, end: int) -> int:
        return self._kept(RecurrentStates.rewind, end)

    def _kept(self, take_back: Callable[[RecurrentStates, int], int], end: int) -> int:
        """Take tokens back, and note which cells are left."""
        self.ledger.check()
        if not self.cells:
            return 0
        with self.ledger.changing():
            n = take_back(self, end)
            self.ledger.taken[self.cells[n:]] = False
            del self.cells[n:]
        return n

    def clear(self) -> None:
        self.ledger.check()
        with self.ledger.changing():
            self._empty()

    def forget(self) -> None:
        self.n_checkpoint, self.prompt = 0, None
        SlotCells.forget(self)

    def _empty(self) -> None:
        self._forget_checkpoint()
        SlotCells._empty(self)
        self._context.n_last_pass = 0


def slots_of(context: LlamaContext) -> Sequence[SlotCells]:
    """The slots of a context that is configured for several texts; none of another.

    With recurrent states it needs a sequence for each text; if there is a further one, it is the first's checkpoint.
    """
    leaves = context.config.slots
    if not leaves or not context.model.is_recurrent:
        return CellLedger(context, leaves).slots
    ledger, n = CellLedger(context, ()), len(leaves)
    checkpoint = n if context.config.n_seq_max > n else None
    ledger.slots += [RecurrentSlot(ledger, i, None if i else checkpoint) for i in range(n)]
    return ledger.slots

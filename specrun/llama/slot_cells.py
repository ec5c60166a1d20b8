"""Several texts in one KV cache, each with its cells in the order of its positions (docs/adr/0016).

llama.cpp puts the tokens of a pass into the lowest free cells, in the order of the batch. Cells of other texts may
lie between the cells of one text; but a text's new token must not get a cell in front of the text's last cell
(docs/adr/0001). Three rules keep it so, and `facts.bits.check_cells` tells whether they do with this llama.cpp:

    Between passes no cell in front of any text's last cell is free. What a text gives up, rejected nodes for example,
    stays taken by the slot's spare sequence, which nothing continues. These cells are called dead.
    In a pass the text whose last cell comes first comes first.
    Before a pass, dead cells are freed as far as its tokens fill them all, each text after its own last cell.

Where layers attend to a window, llama.cpp gives away cells outside of it, but none that two sequences have. So there
texts and dead cells are on two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specrun.errors import ContextFullError, LlamaError
from specrun.llama.batch import Batch
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, SequenceState
from specrun.llama.rollback import PromptState, RecurrentStates, SavedText, TextCache

_NO_CELL = -1  # the last cell of a text without any
_MOST_SPARES = 2  # sequences of a slot for its dead cells


@dataclass
class _Dead:
    """Dead cells at one position of a slot's spare sequence: they can only be freed together."""

    slot: SlotCells
    position: int
    cells: list[int] = field(default_factory=list)


def n_sequences(leaves: Sequence[int]) -> int:
    """Sequences of a context whose slots have trees of so many leaf paths, where no state is recurrent."""
    return sum(leaves) + _MOST_SPARES * len(leaves)


class CellLedger:
    """Which cells of a context the texts of its slots have. slots: one for each text.

    taken: bool[n_ctx], the cells that a text has or that are dead.
    """

    def __init__(self, context: LlamaContext) -> None:
        self.context = context
        self.taken = np.zeros(context.config.n_ctx, np.bool_)
        self._is_right = True  # whether the last change of the cache was noted to its end
        leaves, n_sequences = context.config.slots, context.config.n_seq_max
        self.slots: list[SlotCells]
        if context.model.is_recurrent:
            checkpoint = len(leaves) if n_sequences > len(leaves) else None  # the sequence after those of the texts
            self.slots = [RecurrentSlot(self, i, None if i else checkpoint) for i in range(len(leaves))]
            return
        firsts, n_spares = np.cumsum([0, *leaves]).tolist(), 1 + context.model.has_window
        spares = [range(begin, begin + n_spares) for begin in range(firsts[-1], n_sequences, n_spares)]
        self.slots = [SlotCells(self, firsts[i], n, spares[i]) for i, n in enumerate(leaves)]

    @property
    def n_free(self) -> int:
        """Cells that no text has and that are not dead."""
        return int(len(self.taken) - self.taken.sum())

    @property
    def n_dead(self) -> int:
        """Dead cells of all slots."""
        return sum(len(dead.cells) for slot in self.slots for dead in slot.dead.values())

    @contextmanager
    def writing(self, batch: Batch, shares: Sequence[tuple[TextCache, int]]) -> Iterator[None]:
        """As that of `TextCache`. A slot whose last cell comes first must come first."""
        self.check()
        of_slots = [(slot, n) for slot, n in shares if isinstance(slot, SlotCells)]
        assert len(of_slots) == len(shares), "all texts of a pass have cells of this context"
        self.make_room(of_slots)
        cells = self.next_cells(len(batch))
        with self.changing():
            yield
            self.taken[cells] = True
            begin = 0
            for slot, n in of_slots:
                slot.note(cells, batch, slice(begin, begin + n))
                begin += n

    @contextmanager
    def changing(self) -> Iterator[None]:
        """What is done inside the block changes the cache: if it fails, nobody knows what it holds."""
        before, self._is_right = self._is_right, False
        yield
        self._is_right = before

    def next_cells(self, n: int) -> NDArray[np.intp]:
        """The cells that llama.cpp gives the next `n` tokens: the lowest free cells."""
        cells = np.flatnonzero(~self.taken)[:n]
        if len(cells) < n:
            raise ContextFullError(f"{n} tokens do not fit the {len(cells)} free cells; give a larger --ctx-size")
        return cells

    def make_room(self, shares: Sequence[tuple[SlotCells, int]]) -> None:
        """Free dead cells, the lowest first, as far as the tokens of a pass will fill them in the order of each text.

        shares: as in `writing`. A slot without tokens counts, too: no cell in front of its last cell may stay free.
        """
        self.close_holes()
        groups = [dead for slot in self.slots for dead in slot.dead.values()]
        if not groups:
            return
        tokens = dict(shares)
        alive = sorted((slot for slot in self.slots if slot.cells or slot in tokens), key=lambda slot: slot.last)
        lasts = np.array([slot.last for slot in alive])
        # Cells in front of a slot's last cell that may still become free: as many as slots before it have tokens.
        left = np.cumsum([0, *(tokens.get(slot, 0) for slot in alive)])[:-1]
        freed: dict[SlotCells, list[_Dead]] = {}
        least = int(lasts[left == 0].max(initial=_NO_CELL))  # no cell in front of this one may become free
        for group in sorted(groups, key=lambda dead: min(dead.cells)):
            if min(group.cells) < least:
                continue
            in_front = (np.array(group.cells)[:, None] < lasts).sum(axis=0)
            if (in_front <= left).all():
                left = left - in_front
                least = int(lasts[left == 0].max(initial=_NO_CELL))
                freed.setdefault(group.slot, []).append(group)
        with self.changing():
            for found in freed.values():
                self._free(found)

    def _free(self, groups: list[_Dead]) -> None:
        """Free dead cells of one slot, neighbouring positions with one call."""
        groups.sort(key=lambda dead: dead.position)
        slot = groups[0].slot
        begin = 0
        for i, dead in enumerate(groups):
            del slot.dead[dead.position]
            self.taken[dead.cells] = False
            if i + 1 == len(groups) or groups[i + 1].position > dead.position + 1:
                for spare in slot.spares:
                    self.context.remove(spare, groups[begin].position, dead.position + 1)
                begin = i + 1

    def close_holes(self) -> None:
        """Move texts down, if cells in front of their last ones are free."""
        for slot in sorted((slot for slot in self.slots if slot.leaves_holes), key=lambda slot: slot.last):
            if slot.cells and not self.taken[: slot.last].all():
                with self.changing():
                    slot.move_down()

    def free_dead(self) -> None:
        """Free all dead cells, whatever lies after them: the texts must then be moved, lowest first."""
        for slot in (slot for slot in self.slots if slot.dead):
            self._free(list(slot.dead.values()))

    def is_alone(self, slot: SlotCells) -> bool:
        """Whether no other slot has a text, and no cell is dead."""
        return not any(other.dead or (other.cells and other is not slot) for other in self.slots)

    def check(self) -> None:
        """Begin with an empty cache if something failed while it was changed, as by a failed pass."""
        if self._is_right:
            return
        self.context.remove(ALL_SEQUENCES, 0)
        self.taken[:] = False
        self.context.n_last_pass = 0
        for slot in self.slots:
            slot.forget()
        self._is_right = True


class SlotCells(TextCache):
    """The cells of one text among several.

    spares: the sequences that have its dead cells, all of them on each.
    cells: of its tokens, ascending: committed tokens by position, then the tokens of the last pass.
    dead: its dead cells by position.
    leaves_holes: whether cells that it gives up are free at once instead.
    """

    leaves_holes = False

    def __init__(self, ledger: CellLedger, first: int, max_leaves: int, spares: range) -> None:
        TextCache.__init__(self, ledger.context, first, max_leaves, least=max(len(spares), 1))
        self.ledger = ledger
        self.spares = spares
        self.cells: list[int] = []
        self.dead: dict[int, _Dead] = {}
        # The place of the last pass among the cells, its batch, and the text's part of that.
        self._tail: tuple[int, Batch, slice] | None = None

    @property
    def last(self) -> int:
        return self.cells[-1] if self.cells else _NO_CELL

    @property
    def n_elsewhere(self) -> int:
        """Cells that this text cannot have."""
        return self._context.config.n_ctx - self.ledger.n_free - len(self.cells)

    def writing(self, batch: Batch, shares: Sequence[tuple[TextCache, int]]) -> AbstractContextManager[None]:
        return self.ledger.writing(batch, shares)

    def note(self, cells: NDArray[np.intp], batch: Batch, part: slice) -> None:
        """Note that the `part` of a pass that belongs to this text lies in the same part of `cells`."""
        self._tail = len(self.cells), batch, part
        self.cells += cells[part].tolist()

    def forget(self) -> None:
        """Note that the cache is empty."""
        self.cells, self.dead, self._tail, self.least_end = [], {}, None, 0

    def rollback(self, end: int) -> int:
        self.ledger.check()
        if len(self.cells) > end:
            self._drop(end)
        return min(end, len(self.cells))

    def restore(self, saved: SavedText) -> None:
        self.ledger.make_room([(self, saved.held.n_cached)])
        self._fill(saved.held.n_cached, saved.state, saved.held.prompt)

    def move_down(self) -> None:
        """Move the text, whose dead cells are free, to the lowest free cells. Raises LlamaError if llama.cpp fails."""
        n, prompt = len(self.cells), None if self._context.model.has_window else self.prompt
        state = self._context.sequence_state(self.first)
        self._empty()
        self._fill(n, state, prompt)

    def _fill(self, n: int, state: SequenceState, prompt: PromptState | None) -> None:
        """Hold `n` tokens that llama.cpp saved, on the first sequence and in the lowest free cells, or nothing."""
        cells = self.ledger.next_cells(n)
        refused: LlamaError | None = None
        with self.ledger.changing():
            try:
                self._context.set_sequence_state(self.first, state)
                self.ledger.taken[cells] = True
                self.cells, self.prompt = cells.tolist(), prompt
                self.least_end = n if self._context.model.has_window else 0
            except LlamaError as error:
                self._context.remove(self.first, 0)
                refused = error
        if refused:
            raise refused

    def _empty(self) -> None:
        """Empty the slot and free its cells, though others may lie after them."""
        for seq in range(self.first, self.first + self.max_leaves):
            self._context.remove(seq, 0)
        self.ledger.taken[self.cells] = False
        self.forget()

    def _drop(self, end: int) -> None:
        """Take the cells after the first `end` from the text."""
        dropped = self.cells[end:]
        with self.ledger.changing():
            if self.ledger.is_alone(self):
                self._context.remove(ALL_SEQUENCES, end)
                self.ledger.taken[dropped] = False
            else:
                self._keep_dead(end, dropped)
            del self.cells[end:]
            self._tail = None

    def _keep_dead(self, end: int, dropped: list[int]) -> None:
        # A committed token is on the first sequence and maybe on all others, tokens of the last pass as its batch says.
        positions = np.arange(end, end + len(dropped))
        first_seq, n_seq = np.full(len(dropped), self.first), np.full(len(dropped), self.max_leaves)
        if self._tail:
            place, batch, part = self._tail
            begin, rest = max(place - end, 0), slice(part.start + max(end - place, 0), part.stop)
            positions[begin:] = batch.positions[rest]
            first_seq[begin:], n_seq[begin:] = batch.first_seq[rest], batch.n_seq[rest]
        context, lengths = self._context, self._context.sequence_lengths()
        for seq in range(self.first, self.first + self.max_leaves):
            on = (first_seq <= seq) & (seq < first_seq + n_seq)
            if not lengths[seq] or not on.any():
                continue
            # Dropped nodes are the end of a leaf path, and the nodes that are first on this sequence the end of these.
            own = positions[first_seq == seq]
            for spare in self.spares if len(own) else ():
                context.keep(seq, spare, int(own.min()))
            context.remove(seq, int(positions[on].min()))
        for cell, position in zip(dropped, positions.tolist(), strict=True):
            self.dead.setdefault(position, _Dead(self, position)).cells.append(cell)


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

"""The draft model's cache while a tree grows: each pass expands a few nodes of any depth.

Of a long text the cache holds the beginning and the end only. Each draft pass reads the whole cache, and there are many
for a pass of the target; and what a draft has forgotten costs accepted tokens at most, never a changed text. (The first
tokens stay because attention rests on them: StreamingLLM, arXiv 2309.17453.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.llama.batch import Batch, committed_tokens, common_prefix, drafted_nodes, joined
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits
from specrun.llama.draft_tokens import SameTokens
from specrun.llama.tree_cells import TreeCells
from specrun.speculation.drafter import DraftModel, DraftNode

# Of a text with more than all three together, the last _LAST tokens stay, and up to _SLACK that follow. By measurement
# (scripts/bench_long_prompts.py).
_FIRST, _LAST, _SLACK = 128, 1024, 256


@dataclass(frozen=True, eq=False)
class SavedDraft:
    """Committed text, and the sequence that has it, of a draft or a head.

    tokens: those that it has read. n_forgotten: tokens of the text that are left out after its first ones.
    """

    tokens: list[int]
    n_forgotten: int
    state: NDArray[np.uint8]  # as llama.cpp saves it


class AnyDraft(DraftModel):
    """A draft model or a head, with the context in which it drafts for a target.

    Between two drafts its cache holds committed text on one sequence, and maybe nodes of the last tree after it.
    """

    def __init__(self, context: LlamaContext, n_vocab: int, sequence: int = 0) -> None:
        """sequence: one that has all committed text."""
        self.context = context
        self.n_vocab = n_vocab
        self._whole = sequence
        self._tokens: list[int] = []  # of the committed text, what the cache holds, as the draft reads it
        self._n_forgotten = 0  # tokens of the text that are left out after the first
        self._skipped = 0  # tokens at the beginning of a text that are in no cell
        self._is_unfinished = False  # whether Ctrl-C or a failed pass ended a change of the cache: it is unknown then

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What is done in the block changes the cache."""
        self._is_unfinished = True
        yield
        self._is_unfinished = False

    def n_unread(self, tokens: Sequence[int]) -> int:
        """About how many of `tokens` the next `start` with them would read."""
        return len(tokens) - common_prefix(self._tokens, tokens[:-1])

    def rows_along(self, tokens: Sequence[int], skip: int) -> Iterator[Logits]:
        """float32[n_vocab] for each of `tokens` but the first `skip`: the logits after it. The pass after the next
        overwrites a row. The cache is emptied before, and must be emptied afterwards. Here with a draft for each token.
        """
        self.reset()
        return (self.start(tokens[: end + 1]) for end in range(skip, len(tokens)))

    def reset(self) -> None:
        """Forget all text and empty the cache."""
        raise NotImplementedError

    @property
    def n_saved_bytes(self) -> int:
        """About the bytes that `save` would take now."""
        return self.context.sequence_bytes(self._whole)

    def save(self) -> SavedDraft | None:
        """A copy of the committed text in the cache, to be called between passes; None if there is none."""
        if self._is_unfinished or len(self._tokens) <= self._skipped:
            return None
        return SavedDraft(list(self._tokens), self._n_forgotten, self.context.sequence_state(self._whole))

    def restore(self, saved: SavedDraft) -> None:
        """Hold what was saved, instead of what is held now. Raises LlamaError if llama.cpp fails."""
        self.reset()
        with self._changing():
            self.context.set_sequence_state(self._whole, saved.state)
            # Nodes of a tree may have been after it.
            self.context.remove(self._whole, len(saved.tokens) - self._skipped)
            self._tokens, self._n_forgotten = list(saved.tokens), saved.n_forgotten


class DraftContext(AnyDraft):
    """The draft's KV cache: committed text and the nodes expanded since `start` (see `TreeCells`).

    Accepted nodes stay where they are: committed text goes on in their sequence, and no other sequence is touched.

    vocabulary: how the draft reads the target's tokens, which everybody else means. The cache has the draft's.
    others: those of other texts, which share the context. The order of their cells does not matter
        here: it could only change the drafts.
    sequences: those for this text; None for all of the context.
    """

    def __init__(self, context: LlamaContext, vocabulary: SameTokens, sequences: range | None = None) -> None:
        self._sequences = range(context.config.n_seq_max) if sequences is None else sequences
        super().__init__(context, vocabulary.n_vocab, self._sequences[0])
        self.vocabulary = vocabulary
        self.others: list[DraftContext] = []
        self._n_promised = 0  # cells for nodes that the next pass may expand
        self._cells = TreeCells(
            context, self._sequences, lambda: sum(other._cells.n_cells + other._n_promised for other in self.others)
        )

    def _make_room(self, n: int, beside: Sequence[DraftContext] = ()) -> None:
        """Empty the caches of texts that are not among those `beside` if `n` tokens do not fit beside them. They are
        read again if they draft.
        """
        others = [other for other in self.others if other not in beside]
        if n + sum(other._cells.n_cells for other in others) > self.context.config.n_ctx:
            for other in others:
                other.reset()

    def _remove(self, start: int) -> None:
        """Remove position `start` and all after it from all sequences of this text."""
        for sequence in self._sequences if self.others else (ALL_SEQUENCES,):
            self.context.remove(sequence, start)

    def start(self, tokens: Sequence[int]) -> Logits:
        """See `DraftModel`. Accepted nodes of the last tree are not decoded again, unless a pass failed before."""
        return start_together([(self, tokens)])[0]

    def _keep_common(self, tokens: Sequence[int]) -> list[int]:
        """Remove from the cache what is not of `tokens`. Returns what it shall hold of them."""
        tokens = self.vocabulary.read(tokens)
        above_root = self._held_of(tokens[:-1])
        shared = common_prefix(self._tokens, above_root)
        if self._n_forgotten and shared <= _FIRST:  # another text, of which something else may be left out
            self._n_forgotten = 0
            above_root = list(tokens[:-1])
            shared = common_prefix(self._tokens, above_root)
        if shared < len(self._tokens):
            self._remove(shared)
            self._tokens = above_root[:shared]
        else:
            self._keep_path(above_root[shared:])
        self._forget(len(tokens) - self._n_forgotten - _FIRST - _LAST)
        self._cells.begin(len(self._tokens), self._whole)
        return self._held_of(tokens)

    def _read(self, held: list[int], most: int) -> Batch:
        """The next tokens of `held`, at most so many, which the next pass must have. A row is wanted at the end."""
        begin = len(self._tokens)
        chunk = held[begin : begin + most]
        self._tokens += chunk
        n_outputs = int(len(self._tokens) == len(held))
        return committed_tokens(chunk, begin, 1, n_outputs, self._whole)

    def n_unread(self, tokens: Sequence[int]) -> int:
        tokens = self.vocabulary.read(tokens)
        n = len(tokens) - self._n_forgotten - common_prefix(self._tokens, self._held_of(tokens[:-1]))
        forgets = self.context.can_forget and len(tokens) > _FIRST + _LAST + _SLACK
        return min(n, _FIRST + _LAST) if forgets else n

    def _held_of(self, tokens: Sequence[int]) -> list[int]:
        """What the cache shall hold of a text."""
        return [*tokens[:_FIRST], *tokens[_FIRST + self._n_forgotten :]]

    def _forget(self, n: int) -> None:
        """Leave out the next `n` tokens after the first ones, if they are many; those in the cache move up."""
        if n <= _SLACK or not self.context.can_forget:
            return
        for sequence in self._sequences:
            if sequence != self._whole:  # they share cells, which are about to move
                self.context.remove(sequence, 0)
        if len(self._tokens) > _FIRST + n:
            self.context.forget(self._whole, _FIRST, _FIRST + n)
        else:
            self.context.remove(self._whole, _FIRST)
        self._tokens = [*self._tokens[:_FIRST], *self._tokens[_FIRST + n :]]
        self._n_forgotten += n

    def _keep_path(self, accepted: list[int]) -> None:
        """Make the nodes that hold `accepted` committed text, as far as there are any, and remove all others."""
        n_tokens, n_kept = len(self._tokens), 0
        lengths = self.context.sequence_lengths()
        for sequence in (seq for seq in self._sequences if lengths[seq] > n_tokens):
            # What another user of the context left is on sequences without a path here.
            shared = common_prefix([node.token for node in self._cells.paths.get(sequence, ())], accepted)
            self.context.remove(sequence, n_tokens + shared)
            if shared > n_kept:
                self._whole, n_kept = sequence, shared
        self._tokens += accepted[:n_kept]

    def rows_along(self, tokens: Sequence[int], skip: int) -> Iterator[Logits]:
        self.reset()
        return self.vocabulary.rows_along(self.context, tokens, skip)

    def reset(self) -> None:
        with self._changing():
            self._tokens, self._n_forgotten = [], 0
            self._remove(0)
            self._cells.begin(0, self._whole)

    def restore(self, saved: SavedDraft) -> None:
        with self._changing():
            self._whole = self._sequences[0]
            self._make_room(len(saved.tokens))
            super().restore(saved)
            self._cells.begin(len(saved.tokens), self._whole)

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        """See `DraftModel`: the sequences, the cells and the batch bound the nodes of a pass."""
        with self._changing():
            most = min(width, self.context.config.n_batch, self.context.config.n_outputs)
            places = self._cells.expandable(parents, most, set(parents))
            self._n_promised = len(places)
            return places

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        return expand_together([(self, nodes)])[0]

    def _added(self, nodes: Sequence[DraftNode]) -> Batch:
        """`nodes` with the cells that the next pass, which must have them, gives them."""
        self._n_promised = 0
        nodes = self.vocabulary.read_nodes(nodes)
        sequences, positions = self._cells.add(nodes)
        return drafted_nodes([node.token for node in nodes], positions, sequences)


def start_together(asked: Sequence[tuple[DraftContext, Sequence[int]]]) -> list[Logits]:
    """`DraftContext.start` for several texts in one context, in as few passes as have room for what is to be read."""
    drafts = [draft for draft, _ in asked]
    context, vocabulary = drafts[0].context, drafts[0].vocabulary
    found = dict[int, Logits]()
    for draft in [*drafts, *drafts[0].others]:
        draft._n_promised = 0  # all earlier trees are complete
    for draft in drafts:
        if draft._is_unfinished:
            draft.reset()
    with ExitStack() as changes:
        for draft in drafts:
            changes.enter_context(draft._changing())
        held = [draft._keep_common(tokens) for draft, tokens in asked]
        drafts[0]._make_room(sum(map(len, held)), drafts)
        while len(found) < len(drafts):
            room, batches, ended = context.config.n_batch, list[Batch](), list[int]()
            for i, draft in enumerate(drafts):
                if i not in found and room and len(ended) < context.config.n_outputs:
                    batches.append(draft._read(held[i], room))
                    room -= len(batches[-1])
                    ended += [i] if batches[-1].n_outputs else []
            rows = vocabulary.rows(context.decode(joined(batches)))
            # The next pass overwrites the rows.
            rows = rows.copy() if len(found) + len(ended) < len(drafts) else rows
            found |= dict(zip(ended, rows, strict=True))
        for draft in drafts:
            draft._cells.begin(len(draft._tokens), draft._whole)
    return [found[i] for i in range(len(drafts))]


def expand_together(asked: Sequence[tuple[DraftContext, Sequence[DraftNode]]]) -> list[Logits]:
    """`DraftContext.expand` for several texts in one context, in as few passes as have room for the nodes."""
    drafts = [draft for draft, _ in asked]
    context, vocabulary = drafts[0].context, drafts[0].vocabulary
    sizes = [len(nodes) for _, nodes in asked]
    if len(asked) > 1 and sum(sizes) > min(context.config.n_batch, context.config.n_outputs):
        half = len(asked) // 2
        first = [rows.copy() for rows in expand_together(asked[:half])]  # the next pass overwrites them
        return [*first, *expand_together(asked[half:])]
    with ExitStack() as changes:
        for draft in drafts:
            changes.enter_context(draft._changing())
        rows = vocabulary.rows(context.decode(joined([draft._added(nodes) for draft, nodes in asked])))
    return np.split(rows, np.cumsum(sizes)[:-1])

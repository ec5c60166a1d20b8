"""The draft model's cache while a tree grows: each pass expands a few nodes of any depth.

Of a long text the cache holds the beginning and the end only. Each draft pass reads the whole cache, and there are many
for a pass of the target; and what a draft has forgotten costs accepted tokens at most, never a changed text. (The first
tokens stay because attention rests on them: StreamingLLM, arXiv 2309.17453.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.llama.batch import committed_tokens, common_prefix, drafted_nodes, readable
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits, rows_along
from specrun.llama.tree_cells import TreeCells
from specrun.speculation.drafter import DraftNode

# Of a text with more than all three together, the last _LAST tokens stay, and up to _SLACK that follow. By measurement
# (scripts/bench_long_prompts.py).
_FIRST, _LAST, _SLACK = 128, 1024, 256


@dataclass(frozen=True, eq=False)
class SavedDraft:
    """Committed text, and the sequence that has it.

    tokens: those in the cache. n_forgotten: tokens of the text that are left out behind its first ones.
    """

    tokens: list[int]
    n_forgotten: int
    state: NDArray[np.uint8]  # as llama.cpp saves it


class CacheChange:
    """A `with` block that changes a cache.

    is_unfinished: whether the last such block began and did not end, because of Ctrl-C or a pass that failed. What the
        cache holds is then unknown.
    """

    is_unfinished = False

    def __enter__(self) -> None:
        self.is_unfinished = True

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.is_unfinished = error is not None


class DraftContext:
    """The draft's KV cache: committed text and the nodes expanded since `start` (see `TreeCells`).

    Accepted nodes stay where they are: committed text goes on in their sequence, and no other sequence is touched.

    n_vocab: number of tokens that target and draft have in common, as one vocabulary may be padded further. Rows of
    logits end there, and a committed token that the draft lacks is read as token 0, which costs accepted tokens only.
    others: those of other texts, which share the context. The order of their cells does not matter
        here: it could only change the drafts.
    sequences: those for this text; None for all of the context.
    """

    def __init__(self, context: LlamaContext, n_vocab: int, sequences: range | None = None) -> None:
        self.context = context
        self.n_vocab = n_vocab
        self.others: list[DraftContext] = []
        self._sequences = range(context.config.n_seq_max) if sequences is None else sequences
        self._tokens: list[int] = []  # of the committed text, what the cache holds
        self._n_forgotten = 0  # tokens of the text that are left out behind the first
        self._can_forget = context.can_forget
        self._whole = self._sequences[0]  # a sequence with all committed text
        self._change = CacheChange()
        self._cells = TreeCells(context, self._sequences, self._n_elsewhere)

    def _n_elsewhere(self) -> int:
        return sum(other._cells.n_cells for other in self.others)

    def _make_room(self, n: int) -> None:
        """Empty the caches of other texts if `n` tokens do not fit beside them. They are read again if they draft."""
        if n + self._n_elsewhere() > self.context.config.n_ctx:
            for other in self.others:
                other.reset()

    def _remove(self, start: int) -> None:
        """Remove position `start` and all after it from all sequences of this text."""
        if not self.others:
            self.context.remove(ALL_SEQUENCES, start)
            return
        for sequence in self._sequences:
            self.context.remove(sequence, start)

    def start(self, tokens: Sequence[int]) -> Logits:
        """See `DraftModel`. Accepted nodes of the last tree are not decoded again, unless a pass failed before."""
        if self._change.is_unfinished:
            self.reset()
        with self._change:
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
            held = self._held_of(tokens)
            self._make_room(len(held))
            config = self.context.config
            rows = None
            while len(self._tokens) < len(held):
                begin = len(self._tokens)
                chunk = held[begin : begin + config.n_batch]
                n_outputs = int(begin + len(chunk) == len(held))
                batch = committed_tokens(readable(chunk, self.n_vocab), begin, 1, n_outputs, self._whole)
                rows = self.context.decode(batch)
                self._tokens += chunk
            assert rows is not None, "there is at least one token"
            self._cells.begin(len(self._tokens), self._whole)
        return rows[0, : self.n_vocab]

    def n_unread(self, tokens: Sequence[int]) -> int:
        """About how many of `tokens` the next `start` with them would read."""
        n = len(tokens) - self._n_forgotten - common_prefix(self._tokens, self._held_of(tokens[:-1]))
        forgets = self._can_forget and len(tokens) > _FIRST + _LAST + _SLACK
        return min(n, _FIRST + _LAST) if forgets else n

    def _held_of(self, tokens: Sequence[int]) -> list[int]:
        """What the cache shall hold of a text."""
        return [*tokens[:_FIRST], *tokens[_FIRST + self._n_forgotten :]]

    def _forget(self, n: int) -> None:
        """Leave out the next `n` tokens behind the first ones, if they are many; those in the cache move up."""
        if n <= _SLACK or not self._can_forget:
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
            shared = common_prefix([node.token for node in self._cells.path_on(sequence)], accepted)
            self.context.remove(sequence, n_tokens + shared)
            if shared > n_kept:
                self._whole, n_kept = sequence, shared
        self._tokens += accepted[:n_kept]

    def rows_along(self, tokens: Sequence[int], skip: int) -> Iterator[Logits]:
        """float32[n_vocab] for each of `tokens` but the first `skip`: the logits after it. The pass after the next
        overwrites a row. The cache is emptied before, and must be emptied afterwards.
        """
        self.reset()
        return (row[: self.n_vocab] for row in rows_along(self.context, readable(tokens, self.n_vocab), skip))

    def reset(self) -> None:
        """Forget all text and empty the cache."""
        with self._change:
            self._tokens, self._n_forgotten = [], 0
            self._remove(0)
            self._cells.begin(0, self._whole)

    @property
    def n_saved_bytes(self) -> int:
        """About the bytes that `save` would take now."""
        return self.context.sequence_bytes(self._whole)

    def save(self) -> SavedDraft | None:
        """A copy of the committed text in the cache, to be called between passes; None if there is none."""
        if self._change.is_unfinished or not self._tokens:
            return None
        return SavedDraft(list(self._tokens), self._n_forgotten, self.context.sequence_state(self._whole))

    def restore(self, saved: SavedDraft) -> None:
        """Hold what was saved, instead of what is held now. Raises LlamaError if llama.cpp fails."""
        self.reset()
        with self._change:
            first = self._sequences[0]
            self._make_room(len(saved.tokens))
            self.context.set_sequence_state(first, saved.state)
            self.context.remove(first, len(saved.tokens))  # nodes of a tree may have been behind the text
            self._tokens, self._n_forgotten, self._whole = list(saved.tokens), saved.n_forgotten, first
            self._cells.begin(len(saved.tokens), first)

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        """See `DraftModel`: the sequences, the cells and the batch bound the nodes of a pass."""
        with self._change:
            most = min(width, self.context.config.n_batch, self.context.config.n_outputs)
            return self._cells.expandable(parents, most, set(parents))

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        with self._change:
            sequences, positions = self._cells.add(nodes)
            tokens = readable([node.token for node in nodes], self.n_vocab)
            rows = self.context.decode(drafted_nodes(tokens, positions, sequences))
        return rows[:, : self.n_vocab]

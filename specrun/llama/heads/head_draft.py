"""Heads that draft a level of the tree in each pass: EAGLE-3 heads and MTP layers.

EAGLE-3 (arXiv 2503.01840) is one layer that reads the states of three of the target's layers, fused into one. Its cells
lag one behind: a cell at position p is of the token at p + 1 and the fused state after the token at p.

MTP layers (multi-token prediction) are further layers of the target that predict from its last state. A cell at
position p is of the token at p and the state after the token at p - 1. A model may have several such layers, each
trained for a level of its own; llama.cpp computes the first unless told otherwise, and it drafts all levels here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

import llama_cpp
import numpy as np

from specrun.llama.batch import Floats, committed_tokens, common_prefix, drafted_nodes, readable, rows_batch
from specrun.llama.context import ALL_SEQUENCES, HeadSetup, LlamaContext, Logits
from specrun.llama.draft import AnyDraft
from specrun.llama.heads import hidden_states
from specrun.llama.heads.hidden_states import TargetStates
from specrun.llama.tree_cells import TreeCells
from specrun.speculation.drafter import DraftNode
from specrun.speculation.method import HeadKind
from specrun.speculation.tree import ROOT

_ALL_WITH_LOGITS = 8  # committed tokens up to which one pass gives the logits of all, although only the last are needed


class HeadDraft(AnyDraft):
    """Such a head as a draft: each of its cells is of a token and the state after the token before it.

    Committed tokens are read with the target's states. What follows the root has none yet, so each drafted node is read
    with the head's own state after its parent, which all its siblings share; a node can be expanded once its parent
    was. These cells are dropped when the tree is: what was accepted of them is read again with the target's states.

    llama.cpp gives logits for all tokens of a head's pass or for none: where only some are wanted, the rows belong
    to other tokens.

    context: made with `setup`. layers: those of the target whose states an EAGLE-3 head reads.
    n_vocab: as in `DraftContext`.
    states: those that the target has to note.
    """

    def __init__(self, context: LlamaContext, setup: HeadSetup, layers: tuple[int, ...], n_vocab: int) -> None:
        hidden_states.keep(context.handle, masked=True)
        super().__init__(context, n_vocab)
        self.kind: HeadKind = "mtp" if setup.is_mtp else "eagle3"
        self._width = setup.state_width
        encode = None if setup.is_mtp else self._encoded
        self.states = TargetStates(setup.target, layers, context.config, self._width, encode)
        # EAGLE-3 never reads the first token, as no state lies before it; MTP reads it with a state of zeros. `_tokens`
        # are with it.
        self._skipped = 0 if setup.is_mtp else 1
        self._cells = TreeCells(context)
        self._behind: dict[int, Floats] = {}  # node that can get children -> the head's state after it

    def _encoded(self, rows: Floats) -> Floats:
        """float32[n, state_width]: the states that the head makes of the target's rows, before it reads them."""
        # llama.cpp checks the positions, which go on with the cache's, though it does not use them.
        batch = rows_batch(rows, self.context.sequence_length(self._whole), self._whole, outputs=True)
        self.context.compute(llama_cpp.llama_encode, batch.struct, "a head's encoder")
        return self._own_states(len(rows))

    def _own_states(self, n: int) -> Floats:
        """float32[n, state_width]: the head's states after the tokens of the last pass, which had logits. A view."""
        return hidden_states.kept(self.context.handle, n, self._width)

    def start(self, tokens: Sequence[int]) -> Logits:
        """See `DraftModel`. The target must have read all before the root. A text that is too short to have a state
        gets equal logits, and nothing can be expanded.
        """
        if self._is_unfinished:
            self.reset()
        with self._changing():
            text = list(tokens)
            self._behind = {}
            row = np.zeros(self.n_vocab, np.float32)
            for n_cells, rows in self._read(text):
                self._behind[ROOT] = self._own_states(n_cells)[-1].copy()
                row = rows[-1, : self.n_vocab]
            self._cells.begin(max(len(text) - self._skipped, 0), self._whole)
        return row

    def _read(self, text: list[int], is_for_all: bool = False) -> Iterator[tuple[int, Logits]]:
        """Read what the cache lacks of `text`, its last token in any case, in a few passes.

        Yields the number of cells of each pass with logits, and the rows of them. Without `is_for_all` that is only the
        last pass.
        """
        kept = max(min(common_prefix(self._tokens, text), len(text) - 1), 0)
        kept = kept if kept > self._skipped else 0
        self.context.remove(ALL_SEQUENCES, max(kept - self._skipped, 0))
        self._tokens = text[:kept]
        position = max(kept, self._skipped)
        while position < len(text):
            n_left = len(text) - position
            has_logits = is_for_all or n_left <= _ALL_WITH_LOGITS
            n = min(n_left if has_logits else n_left - 1, self.context.config.n_batch)
            tokens = readable(text[position : position + n], self.n_vocab)
            batch = committed_tokens(
                tokens, position - self._skipped, 1, n_outputs=n if has_logits else 0, first_seq=self._whole
            )
            states = self.states.of(text, position - 1, position + n - 1)
            rows = self.context.decode(replace(batch, states=states))
            position += n
            self._tokens = text[:position]
            if has_logits:
                yield n, rows

    def rows_along(self, tokens: Sequence[int], skip: int) -> Iterator[Logits]:
        """As `DraftContext.rows_along`. The target must have read all but the last token."""
        self.reset()
        self._is_unfinished = True
        without = [np.zeros(self.n_vocab, np.float32) for _ in tokens[: self._skipped]]
        rows = (row[: self.n_vocab] for _, rows in self._read(list(tokens), is_for_all=True) for row in rows)
        return islice(chain(without, rows), skip, None)

    def reset(self) -> None:
        with self._changing():
            self._tokens = []
            self._behind = {}
            self.context.remove(ALL_SEQUENCES, 0)
            self._cells.begin(0, self._whole)

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        """See `DraftModel`: only nodes whose parents were expanded in earlier passes can be expanded."""
        with self._changing():
            known = [place for place, parent in enumerate(parents) if parent in self._behind]
            most = min(width, self.context.config.n_batch, self.context.config.n_outputs)
            places = self._cells.expandable([parents[place] for place in known], most, set(parents))
        return [known[place] for place in places]

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        """See `DraftModel`. The parents must have been expanded in earlier passes, or be the root."""
        with self._changing():
            states = np.stack([self._behind[node.parent] for node in nodes])
            sequences, positions = self._cells.add(nodes)
            tokens = readable([node.token for node in nodes], self.n_vocab)
            rows = self.context.decode(drafted_nodes(tokens, positions, sequences, states))
            for node, state in zip(nodes, self._own_states(len(nodes)).copy(), strict=True):
                self._behind[node.id] = state
        return rows[:, : self.n_vocab]

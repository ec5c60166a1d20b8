"""A head's KV cache while a tree grows: the target's states for committed text, the head's own for drafted nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from specrun.llama.batch import committed_tokens, common_prefix, drafted_nodes, readable
from specrun.llama.context import ALL_SEQUENCES, Logits
from specrun.llama.draft import CacheChange
from specrun.llama.heads.bindings import Floats
from specrun.llama.heads.head_context import HeadContext
from specrun.llama.heads.target_states import TargetStates
from specrun.llama.tree_cells import TreeCells
from specrun.speculation.drafter import DraftNode
from specrun.speculation.method import HeadKind
from specrun.speculation.tree import ROOT

_WHOLE = 0  # the sequence with all committed text
_ALL_WITH_LOGITS = 8  # committed tokens up to which one pass gives the logits of all, although only the last are needed


class HeadDraft:
    """A head as a draft: each of its cells is of a token and the state behind the token before it.

    Committed tokens are read with the target's states. What follows the root has none yet, so each drafted node is read
    with the head's own state behind its parent, which all its siblings share; a node can be expanded once its parent
    was. These cells are dropped when the tree is: what was accepted of them is read again with the target's states.

    states: the target's.
    n_vocab: as in `DraftContext`.
    skipped: tokens at the beginning of a text that are in no cell. EAGLE-3 never reads the first token, as no state
        lies before it; MTP reads it with a state of zeros.
    """

    def __init__(self, kind: HeadKind, context: HeadContext, states: TargetStates, n_vocab: int, skipped: int) -> None:
        self.kind = kind
        self.context = context
        self.n_vocab = n_vocab
        self._target = states
        self._skipped = skipped
        self._text: list[int] = []  # what the cache holds, with the tokens that are in no cell
        self._cells = TreeCells(context)
        self._states: dict[int, Floats] = {}  # node that can get children -> the head's state behind it
        self._change = CacheChange()

    def start(self, tokens: Sequence[int]) -> Logits:
        """See `DraftModel`. The target must have read all before the root. A text that is too short to have a state
        gets equal logits, and nothing can be expanded.
        """
        if self._change.is_unfinished:
            self.reset()
        with self._change:
            text = list(tokens)
            self._states = {}
            row = np.zeros(self.n_vocab, np.float32)
            for n_cells, rows in self._read(text):
                self._states[ROOT] = self.context.states(n_cells)[-1].copy()
                row = rows[-1, : self.n_vocab]
            self._cells.begin(max(len(text) - self._skipped, 0), _WHOLE)
        return row

    def _read(self, text: list[int], is_for_all: bool = False) -> Iterator[tuple[int, Logits]]:
        """Read what the cache lacks of `text`, its last token in any case, in a few passes.

        Yields the number of cells of each pass with logits, and the rows of them. Without `is_for_all` that is only the
        last pass.
        """
        kept = max(min(common_prefix(self._text, text), len(text) - 1), 0)
        kept = kept if kept > self._skipped else 0
        self.context.remove(ALL_SEQUENCES, max(kept - self._skipped, 0))
        self._text = text[:kept]
        position = max(kept, self._skipped)
        while position < len(text):
            n_left = len(text) - position
            has_logits = is_for_all or n_left <= _ALL_WITH_LOGITS
            n = min(n_left if has_logits else n_left - 1, self.context.config.n_batch)
            tokens = readable(text[position : position + n], self.n_vocab)
            batch = committed_tokens(
                tokens, position - self._skipped, 1, n_outputs=n if has_logits else 0, first_seq=_WHOLE
            )
            states = self._target.of(text, position - 1, position + n - 1)
            rows = self.context.decode(replace(batch, states=states))
            position += n
            self._text = text[:position]
            if has_logits:
                yield n, rows

    def rows_along(self, tokens: Sequence[int], skip: int) -> Iterator[Logits]:
        """As `DraftContext.rows_along`. The target must have read all but the last token."""
        return islice(self._rows_along(tokens), skip, None)

    def _rows_along(self, tokens: Sequence[int]) -> Iterator[Logits]:
        self.reset()
        self._change.is_unfinished = True
        for _ in tokens[: self._skipped]:
            yield np.zeros(self.n_vocab, np.float32)
        for _, rows in self._read(list(tokens), is_for_all=True):
            yield from (row[: self.n_vocab] for row in rows)

    def reset(self) -> None:
        """Forget all text and empty the cache."""
        with self._change:
            self._text = []
            self._states = {}
            self.context.remove(ALL_SEQUENCES, 0)
            self._cells.begin(0, _WHOLE)

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        """See `DraftModel`: only nodes whose parents were expanded in earlier passes can be expanded."""
        with self._change:
            known = [place for place, parent in enumerate(parents) if parent in self._states]
            most = min(width, self.context.config.n_batch, self.context.config.n_outputs)
            places = self._cells.expandable([parents[place] for place in known], most, set(parents))
        return [known[place] for place in places]

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        """See `DraftModel`. The parents must have been expanded in earlier passes, or be the root."""
        with self._change:
            states = np.stack([self._states[node.parent] for node in nodes])
            sequences, positions = self._cells.add(nodes)
            tokens = readable([node.token for node in nodes], self.n_vocab)
            rows = self.context.decode(drafted_nodes(tokens, positions, sequences, states))
            for node, state in zip(nodes, self.context.states(len(nodes)).copy(), strict=True):
                self._states[node.id] = state
        return rows[:, : self.n_vocab]

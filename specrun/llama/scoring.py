"""One pass over a `Part` of each text: a portion of its prompt, or its pending tokens and its tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specrun.llama.batch import Batch, committed_tokens, joined
from specrun.llama.context import Logits
from specrun.llama.lane_cells import LaneCells
from specrun.llama.leaf_sequences import LeafSequences
from specrun.llama.rollback import TextCache
from specrun.speculation.planning.pass_sizes import PassSizes
from specrun.speculation.tree import ROOT, TokenTree


@dataclass(frozen=True)
class Part:
    """The tokens of one text in a pass."""

    batch: Batch  # committed tokens, and the tree if there is one
    n_before: int  # the committed tokens before the tree's root
    end_seq: int  # where padding would go on
    end_position: int


def portion_of(tokens: Sequence[int], n_cached: int, n: int, sequences: LeafSequences) -> Part:
    """The next `n` of the committed `tokens`, of which the cache holds `n_cached`. No logits of them are wanted."""
    end = n_cached + n
    batch = committed_tokens(list(tokens[n_cached:end]), n_cached, sequences.n, n_outputs=0, first_seq=sequences.first)
    return Part(batch, n, sequences.last, end)


def tree_of(tokens: Sequence[int], n_cached: int, tree: TokenTree, sequences: LeafSequences) -> Part:
    """The committed `tokens` that the cache does not hold, whose last token is the root, and the `tree`.

    sequences: as many as the tree has leaves must hold what is cached. Logits of the tree's nodes are wanted.
    """
    root_position = len(tokens) - 1
    if len(tree) == 1:  # a plain pass may take less than a millisecond
        pending = list(tokens[n_cached:])
        batch = committed_tokens(pending, n_cached, sequences.n, n_outputs=1, first_seq=sequences.first)
        return Part(batch, len(pending) - 1, sequences.last, root_position + 1)
    before = np.asarray(tokens[n_cached:-1], np.int32)
    n_before = len(before)
    # Committed tokens, the root included, are on every sequence that is in use, so that these stay equally long.
    n_seq = tree.leaf_counts.copy()
    n_seq[ROOT] = sequences.n
    batch = Batch(
        tokens=np.concatenate([before, tree.tokens]),
        positions=np.concatenate([np.arange(n_cached, root_position, dtype=np.int32), root_position + tree.depths]),
        first_seq=sequences.first + np.concatenate([np.zeros(n_before, np.int32), tree.first_leaves]),
        n_seq=np.concatenate([np.full(n_before, sequences.n, np.int32), n_seq]),
        outputs=np.arange(n_before + len(tree)) >= n_before,
    )
    # Padding continues the last sequence. If the tree has a path on it, that is the path of its last node.
    depth = int(tree.depths[-1]) if tree.n_leaves == sequences.n else 0
    return Part(batch, n_before, sequences.last, root_position + depth + 1)


class PassText(Protocol):
    """What a pass needs to know of a text: `TargetContext`, where the methods are explained."""

    cells: TextCache

    @property
    def padding(self) -> PassSizes: ...

    @property
    def last_cell(self) -> int: ...

    def prepare(self, tree: TokenTree) -> Part: ...

    def prepare_portion(self) -> Part: ...

    def has_read_portion(self) -> None: ...

    def read_portion(self) -> None: ...


def score_together(texts: Sequence[tuple[PassText, TokenTree]], reading: Sequence[PassText] = ()) -> list[Logits]:
    """One pass over the pending tokens and the tree of each text, whose root must be its last committed token.

    reading: texts of which the pass has the next portion of the prompt.

    Several targets must be lanes of one context and padded alike, as the pass as a whole gets a size of the class.
    Returns for each of `texts` float32[len(tree), n_vocab], a view that the next pass overwrites; row i predicts the
    token after node i. Raises ContextFullError if the tokens do not fit together.
    """
    if not texts and len(reading) == 1:
        reading[0].read_portion()
        return []
    everyone = [*texts, *((target, None) for target in reading)]
    order = sorted(range(len(everyone)), key=lambda i: everyone[i][0].last_cell)  # see `lane_cells`
    targets = [everyone[i][0] for i in order]
    parts = [
        target.prepare_portion() if tree is None else target.prepare(tree)
        for target, tree in (everyone[i] for i in order)
    ]
    padding, last = targets[0].padding, parts[-1]
    batch = joined([part.batch for part in parts])
    n_wanted = batch.n_outputs
    n = len(batch)
    batch = batch.padded(padding.padded(n), last.end_seq, last.end_position)
    # llama.cpp computes the end of the last layer for wanted rows only, so their number is padded as well: with rows of
    # padding, and if that is too little, of pending tokens.
    n_further = padding.padded(n_wanted) - n_wanted if n_wanted else 0
    if n_further:
        unwanted = np.flatnonzero(~batch.outputs)
        batch.outputs[np.append(unwanted[unwanted >= n], unwanted[unwanted < n][::-1])[:n_further]] = True
    logits = _decode(targets, [len(part.batch) for part in parts], batch)
    rows: list[Logits] = [logits] * len(texts)
    begin = 0
    for i, part in zip(order, parts, strict=True):
        if i < len(texts):
            first = int(np.count_nonzero(batch.outputs[: begin + part.n_before]))
            rows[i] = logits[first : first + len(texts[i][1])]
        begin += len(part.batch)
    for target in reading:
        target.has_read_portion()
    return rows


def _decode(targets: Sequence[PassText], sizes: list[int], batch: Batch) -> Logits:
    if len(targets) == 1:
        return targets[0].cells.decode(batch)
    lanes = [target.cells for target in targets]
    sizes[-1] += len(batch) - sum(sizes)  # padding
    shares = [(lane, n) for lane, n in zip(lanes, sizes, strict=True) if isinstance(lane, LaneCells)]
    return shares[0][0].ledger.decode(batch, shares)

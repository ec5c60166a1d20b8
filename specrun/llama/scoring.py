"""One pass over a `Part` of each text: a chunk of its prompt, or its pending tokens and its tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specrun.llama.batch import Batch, committed_tokens, joined
from specrun.llama.pass_bounds import PassBounds
from specrun.llama.rollback import TextCache
from specrun.speculation.tree import ROOT, TokenTree


@dataclass(frozen=True)
class Part:
    """The tokens of one text in a pass."""

    cells: TextCache  # of the text
    batch: Batch  # committed tokens, and the tree if there is one
    n_before: int  # the committed tokens before the tree's root
    end_position: int  # where padding would go on, on the last sequence of the text


def chunk_of(tokens: Sequence[int], n_cached: int, n: int, cells: TextCache) -> Part:
    """The next `n` of the committed `tokens`, of which the cache holds `n_cached`. No logits of them are wanted."""
    end = n_cached + n
    batch = committed_tokens(list(tokens[n_cached:end]), n_cached, cells.n_sequences, 0, cells.first)
    return Part(cells, batch, n, end)


def tree_of(tokens: Sequence[int], n_cached: int, tree: TokenTree, cells: TextCache) -> Part:
    """The committed `tokens` that the cache does not hold, whose last token is the root, and the `tree`.

    As many sequences as the tree has leaves must hold what is cached. Logits of the tree's nodes are wanted.
    """
    root_position = len(tokens) - 1
    if len(tree) == 1:  # a plain pass may take less than a millisecond
        pending = list(tokens[n_cached:])
        batch = committed_tokens(pending, n_cached, cells.n_sequences, 1, cells.first)
        return Part(cells, batch, len(pending) - 1, root_position + 1)
    before = np.asarray(tokens[n_cached:-1], np.int32)
    n_before = len(before)
    # Committed tokens, the root included, are on every sequence that is in use, so that these stay equally long.
    n_seq = tree.leaf_counts.copy()
    n_seq[ROOT] = cells.n_sequences
    batch = Batch(
        tokens=np.concatenate([before, tree.tokens]),
        positions=np.concatenate([np.arange(n_cached, root_position, dtype=np.int32), root_position + tree.depths]),
        first_seq=cells.first + np.concatenate([np.zeros(n_before, np.int32), tree.first_leaves]),
        n_seq=np.concatenate([np.full(n_before, cells.n_sequences, np.int32), n_seq]),
        outputs=np.arange(n_before + len(tree)) >= n_before,
    )
    # Padding continues the last sequence. If the tree has a path on it, that is the path of its last node.
    depth = int(tree.depths[-1]) if tree.n_leaves == cells.n_sequences else 0
    return Part(cells, batch, n_before, root_position + depth + 1)


def join_parts(
    parts: Sequence[Part], bounds: PassBounds, least: int
) -> tuple[Batch, list[tuple[TextCache, int]], list[int], list[slice]]:
    """The pass over parts of texts, see `score_together`. As a whole it gets a size of the class, `least` or larger.

    Returns the batch; whose tokens it has, in its order, and how many of each, padding included; and for each part the
    place of its first token in the batch, and its rows of the logits, one for each node of its tree.
    """
    if len(parts) == 1:
        batch = parts[0].batch
        n, n_wanted = len(batch), batch.n_outputs
        if n >= least and n == bounds.padded_call(n) and n_wanted in (0, bounds.padding.padded(n_wanted)):
            # A plain pass may take less than a millisecond.
            return batch, [(parts[0].cells, n)], [0], [slice(None)]
    order = sorted(range(len(parts)), key=lambda i: parts[i].cells.last)  # see `slot_cells`
    last = parts[order[-1]]
    batch = joined([parts[i].batch for i in order])
    n_wanted = batch.n_outputs
    n = len(batch)
    batch = batch.padded(bounds.padded_call(max(n, least)), last.cells.last_sequence, last.end_position)
    # llama.cpp computes the end of the last layer for wanted rows only, so their number is padded as well: with rows of
    # padding, and if that is too little, of pending tokens.
    n_further = bounds.padding.padded(n_wanted) - n_wanted if n_wanted else 0
    if n_further:
        outputs = batch.outputs.copy()
        unwanted = np.flatnonzero(~outputs)
        outputs[np.append(unwanted[unwanted >= n], unwanted[unwanted < n][::-1])[:n_further]] = True
        batch = replace(batch, outputs=outputs)
    shares = [(parts[i].cells, len(parts[i].batch)) for i in order]
    shares[-1] = last.cells, len(last.batch) + len(batch) - n
    begin, begins, rows = 0, [0] * len(parts), [slice(0)] * len(parts)
    for i in order:
        begins[i], end, root = begin, begin + len(parts[i].batch), begin + parts[i].n_before
        first = int(np.count_nonzero(batch.outputs[:root]))
        rows[i] = slice(first, first + end - root)
        begin = end
    return batch, shares, begins, rows

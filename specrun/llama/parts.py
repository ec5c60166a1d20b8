"""What a pass has of one text: a portion of it that is to be read, or pending tokens and a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specrun.llama.batch import Batch, committed_tokens
from specrun.llama.leaf_sequences import LeafSequences
from specrun.speculation.tree import ROOT, TokenTree


@dataclass(frozen=True)
class Part:
    """The tokens of one text in a pass.

    batch: committed tokens, and the tree if there is one. n_before: the committed tokens before the tree's root.
    end_seq, end_position: where padding would go on.
    """

    batch: Batch
    n_before: int
    end_seq: int
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

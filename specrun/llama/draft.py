"""The draft model's KV cache while a tree grows: each pass expands a few nodes of any depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.llama.batch import Batch, committed_tokens
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits
from specrun.llama.prefix import common_prefix
from specrun.speculation.drafter import DraftNode
from specrun.speculation.tree import ROOT


class DraftContext:
    """The draft's KV cache: committed text and the nodes expanded since `start`.

    Every expanded node is on one sequence. The first expanded child of a node continues the sequence of its parent;
    every other child gets a new sequence that shares the cells of the path above.

    n_vocab: number of tokens that target and draft have in common, as one vocabulary may be padded further. Rows of
    logits end there, and a committed token that the draft lacks is read as token 0, which costs accepted tokens only.
    """

    def __init__(self, context: LlamaContext, n_vocab: int) -> None:
        self.context = context
        self.n_vocab = n_vocab
        self._tokens: list[int] = []
        self._place: dict[int, tuple[int, int]] = {}  # node -> (sequence, position)
        self._continued: set[int] = set()  # nodes with a child on their own sequence
        self._next_sequence = 1
        self._n_drafted = 0  # cells of expanded nodes

    def start(self, tokens: Sequence[int]) -> Logits:
        """Bring the cache to `tokens`, all committed text, whose last token is the root of the next tree.

        Returns float32[n_vocab], the logits after the root. Nodes of the last tree are forgotten.
        """
        shared = min(common_prefix(self._tokens, tokens), len(tokens) - 1)
        self.context.remove(ALL_SEQUENCES, shared)
        self._tokens = list(tokens[:shared])
        config = self.context.config
        rows = None
        while len(self._tokens) < len(tokens):
            begin = len(self._tokens)
            chunk = list(tokens[begin : begin + config.n_batch])
            is_last = begin + len(chunk) == len(tokens)
            batch = committed_tokens(self.readable(chunk), begin, config.n_seq_max, n_outputs=int(is_last))
            rows = self.context.decode(batch)
            self._tokens += chunk
        assert rows is not None, "there is at least one token"
        self._place = {ROOT: (0, len(tokens) - 1)}
        self._continued = set()
        self._next_sequence = 1
        self._n_drafted = 0
        return rows[0, : self.n_vocab]

    def readable(self, tokens: Sequence[int]) -> list[int]:
        """`tokens` with 0 in place of those that the draft does not have."""
        return [token if token < self.n_vocab else 0 for token in tokens]

    def reset(self) -> None:
        """Forget all text and empty the cache."""
        self.context.remove(ALL_SEQUENCES, 0)
        self._tokens = []

    def expandable(self, parents: Sequence[int]) -> Sequence[int]:
        """Places, ascending, of the nodes that one pass can expand with the sequences, cells and batch that are left.

        parents: the parent of each node, in the order in which the nodes would be expanded. Once no sequence is left,
        nodes that continue their parent's sequence can still be expanded.
        """
        free_sequences = self.context.config.n_seq_max - self._next_sequence
        free_cells = self._free_cells()
        continued = set(self._continued)
        places: list[int] = []
        for place, parent in enumerate(parents):
            if len(places) == free_cells:
                break
            if parent in continued:
                if free_sequences == 0:
                    continue
                free_sequences -= 1
            continued.add(parent)
            places.append(place)
        return places

    def _free_cells(self) -> int:
        config = self.context.config
        free = config.n_ctx - len(self._tokens) - self._n_drafted
        return max(0, min(free, config.n_batch, config.n_outputs))

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        """One pass over `nodes`. Returns float32[len(nodes), n_vocab]; row i predicts the token after nodes[i].

        The parent of a node must be the root, or expanded already, or come before it in `nodes`; in the last case it
        may have one child only. The next pass overwrites the rows.
        """
        sequences, positions = [], []
        for node in nodes:
            parent_sequence, parent_position = self._place[node.parent]
            sequence = parent_sequence
            if node.parent in self._continued:
                sequence = self._next_sequence
                self._next_sequence += 1
                if parent_position >= len(self._tokens):
                    self.context.copy(parent_sequence, sequence, len(self._tokens), parent_position + 1)
            self._continued.add(node.parent)
            self._place[node.id] = (sequence, parent_position + 1)
            sequences.append(sequence)
            positions.append(parent_position + 1)
        # llama.cpp needs the positions of each sequence in order, and parents do come before their children.
        batch = Batch(
            tokens=np.array([node.token for node in nodes], np.int32),
            positions=np.array(positions, np.int32),
            first_seq=np.array(sequences, np.int32),
            n_seq=np.ones(len(nodes), np.int32),
            outputs=np.ones(len(nodes), np.bool_),
        )
        rows = self.context.decode(batch)
        self._n_drafted += len(nodes)
        return rows[:, : self.n_vocab]

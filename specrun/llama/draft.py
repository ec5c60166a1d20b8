"""The draft model's KV cache while a tree grows: each pass expands a few nodes of any depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.llama.batch import Batch, committed_tokens
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits
from specrun.llama.prefix import common_prefix
from specrun.speculation.drafter import DraftNode
from specrun.speculation.tree import ROOT


@dataclass(frozen=True, eq=False)
class SavedDraft:
    """tokens: committed text. state: uint8[n], the sequence that has it, as llama.cpp saves it."""

    tokens: list[int]
    state: NDArray[np.uint8]


class DraftContext:
    """The draft's KV cache: committed text and the nodes expanded since `start`.

    Every expanded node is on one sequence. The first expanded child of a node continues the sequence of its parent;
    every other child gets a free sequence that shares the cells of the path above. Where sequences or cells run out,
    those of nodes that will have no further child are freed: the end of each sequence that no open node needs.

    A free sequence has the beginning of the committed text, as far as it was needed when it was last used, and shares
    the rest of it when it is used again. So the nodes that were accepted stay where they are: the sequence that they
    are on is the one that committed text goes on with, and no other one is touched.

    n_vocab: number of tokens that target and draft have in common, as one vocabulary may be padded further. Rows of
    logits end there, and a committed token that the draft lacks is read as token 0, which costs accepted tokens only.
    """

    def __init__(self, context: LlamaContext, n_vocab: int) -> None:
        self.context = context
        self.n_vocab = n_vocab
        self._tokens: list[int] = []
        self._whole = 0  # a sequence with all committed text
        self._is_in_doubt = False  # something was begun and not ended, as by Ctrl-C or a pass that failed
        self._begin_tree()

    def _begin_tree(self) -> None:
        sequences = range(self.context.config.n_seq_max - 1, -1, -1)
        self._place = {ROOT: (self._whole, len(self._tokens) - 1)}  # node that can get children -> sequence, position
        self._free = [sequence for sequence in sequences if sequence != self._whole]
        # Every sequence that is not free -> the nodes whose cells it has behind the committed text, in order.
        self._paths: dict[int, list[DraftNode]] = {self._whole: []}
        self._n_holders: dict[int, int] = {}  # node -> number of sequences that have its cell

    def start(self, tokens: Sequence[int]) -> Logits:
        """Bring the cache to `tokens`, all committed text, whose last token is the root of the next tree.

        Returns float32[n_vocab], the logits after the root. Nodes of the last tree are forgotten, but those that were
        accepted are not decoded again. If a pass failed or was interrupted before, all text is.
        """
        if self._is_in_doubt:
            self.reset()
        self._is_in_doubt = True
        above_root = list(tokens[:-1])
        shared = common_prefix(self._tokens, above_root)
        if shared < len(self._tokens):
            self.context.remove(ALL_SEQUENCES, shared)
            self._tokens = above_root[:shared]
        else:
            self._keep_path(above_root[shared:])
        config = self.context.config
        rows = None
        while len(self._tokens) < len(tokens):
            begin = len(self._tokens)
            chunk = list(tokens[begin : begin + config.n_batch])
            is_last = begin + len(chunk) == len(tokens)
            batch = committed_tokens(self.readable(chunk), begin, 1, n_outputs=int(is_last), first_seq=self._whole)
            rows = self.context.decode(batch)
            self._tokens += chunk
        assert rows is not None, "there is at least one token"
        self._begin_tree()
        self._is_in_doubt = False
        return rows[0, : self.n_vocab]

    def _keep_path(self, accepted: list[int]) -> None:
        """Make the nodes that hold `accepted` committed text, as far as there are any, and remove all others."""
        n_tokens, n_kept = len(self._tokens), 0
        lengths = self.context.sequence_lengths()
        for sequence in np.flatnonzero(lengths > n_tokens).tolist():
            # What another user of the context left is on sequences without a path here.
            shared = common_prefix([node.token for node in self._paths.get(sequence, [])], accepted)
            self.context.remove(sequence, n_tokens + shared)
            if shared > n_kept:
                self._whole, n_kept = sequence, shared
        self._tokens += accepted[:n_kept]

    def readable(self, tokens: Sequence[int]) -> list[int]:
        """`tokens` with 0 in place of those that the draft does not have."""
        return [token if token < self.n_vocab else 0 for token in tokens]

    def reset(self) -> None:
        """Forget all text and empty the cache."""
        self._is_in_doubt = True
        self._tokens = []
        self.context.remove(ALL_SEQUENCES, 0)
        self._begin_tree()
        self._is_in_doubt = False

    def save(self) -> SavedDraft | None:
        """A copy of the committed text in the cache, to be called between passes; None if there is none."""
        if self._is_in_doubt or not self._tokens:
            return None
        return SavedDraft(list(self._tokens), self.context.sequence_state(self._whole))

    def restore(self, saved: SavedDraft) -> None:
        """Hold what was saved, instead of what is held now. Raises LlamaError if llama.cpp fails."""
        self.reset()
        self._is_in_doubt = True
        self.context.set_sequence_state(0, saved.state)
        self.context.remove(0, len(saved.tokens))  # nodes of a tree may have been behind the text
        self._tokens, self._whole = list(saved.tokens), 0
        self._begin_tree()
        self._is_in_doubt = False

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        """Places, ascending, of at most `width` nodes that one pass can expand with the sequences, cells and batch.

        parents: the parent of every node that may still be expanded, in the order in which the nodes would be. Where
        space is short, other nodes that were expanded are forgotten and can have no further child. Once no sequence is
        left, nodes that continue their parent's sequence can still be expanded.
        """
        self._is_in_doubt = True
        wanted = min(width, len(parents), self.context.config.n_batch, self.context.config.n_outputs)
        places = self._fitting(parents, wanted)
        if len(places) < wanted and self._keep_open(set(parents)):
            places = self._fitting(parents, wanted)
        self._is_in_doubt = False
        return places

    def _fitting(self, parents: Sequence[int], count: int) -> list[int]:
        """Places of the first `count` nodes that fit as the cache is now."""
        n_free = len(self._free)
        count = min(count, self.context.config.n_ctx - len(self._tokens) - len(self._n_holders))
        continued: set[int] = set()  # parents whose sequence goes on with a node at one of the places
        places: list[int] = []
        for place, parent in enumerate(parents):
            if len(places) >= count:
                break
            if parent in continued or self._is_continued(parent):
                if n_free == 0:
                    continue
                n_free -= 1
            continued.add(parent)
            places.append(place)
        return places

    def _is_continued(self, node: int) -> bool:
        """Whether the sequence of `node` goes on behind it. False for a node that is not expanded yet."""
        if node not in self._place:
            return False
        sequence, position = self._place[node]
        return len(self._tokens) + len(self._paths[sequence]) > position + 1

    def _keep_open(self, nodes: set[int]) -> bool:
        """Forget all nodes but `nodes`, and free the sequences and cells that only others need; whether any was."""
        self._place = {node: place for node, place in self._place.items() if node in nodes}
        n_needed: dict[int, int] = {}
        for sequence, position in self._place.values():
            n_needed[sequence] = max(n_needed.get(sequence, 0), position + 1 - len(self._tokens))
        is_any_free = False
        for sequence, path in list(self._paths.items()):
            needed = n_needed.get(sequence, 0)
            if len(path) > needed:
                self.context.remove(sequence, len(self._tokens) + needed)
                self._let_go(path[needed:])
                del path[needed:]
                is_any_free = True
            if sequence not in n_needed:
                del self._paths[sequence]
                self._free.append(sequence)
                is_any_free = True
        return is_any_free

    def _hold(self, nodes: Sequence[DraftNode]) -> None:
        for node in nodes:
            self._n_holders[node.id] = self._n_holders.get(node.id, 0) + 1

    def _let_go(self, nodes: Sequence[DraftNode]) -> None:
        for node in nodes:
            self._n_holders[node.id] -= 1
            if not self._n_holders[node.id]:
                del self._n_holders[node.id]

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        """One pass over `nodes`. Returns float32[len(nodes), n_vocab]; row i predicts the token after nodes[i].

        The parent of a node must be the root, or expanded already, or come before it in `nodes`; in the last case it
        may have one child only. The next pass overwrites the rows.
        """
        self._is_in_doubt = True
        sequences, positions = [], []
        for node in nodes:
            sequence = self._sequence_behind(node.parent)
            position = self._place[node.parent][1] + 1
            self._paths[sequence].append(node)
            self._hold([node])
            self._place[node.id] = (sequence, position)
            sequences.append(sequence)
            positions.append(position)
        # llama.cpp needs the positions of each sequence in order, and parents do come before their children.
        batch = Batch(
            tokens=np.array(self.readable([node.token for node in nodes]), np.int32),
            positions=np.array(positions, np.int32),
            first_seq=np.array(sequences, np.int32),
            n_seq=np.ones(len(nodes), np.int32),
            outputs=np.ones(len(nodes), np.bool_),
        )
        rows = self.context.decode(batch)
        self._is_in_doubt = False
        return rows[:, : self.n_vocab]

    def _sequence_behind(self, parent: int) -> int:
        """A sequence that ends with `parent`: its own, or a free one that now shares all its cells."""
        sequence, position = self._place[parent]
        if not self._is_continued(parent):
            return sequence
        branch = self._free.pop()
        self.context.copy(sequence, branch, int(self.context.sequence_lengths()[branch]), position + 1)
        path = self._paths[sequence][: position + 1 - len(self._tokens)]
        self._paths[branch] = path
        self._hold(path)
        return branch

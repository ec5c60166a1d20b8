"""Where the nodes of a growing tree lie in a KV cache: on which sequence, and at which position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from specrun.llama.context import LlamaContext
from specrun.speculation.drafter import DraftNode
from specrun.speculation.tree import ROOT


class TreeCells:
    """The cells of the nodes that were expanded after a committed text, whose last token is the root.

    Every expanded node is on one sequence. The first expanded child of a node continues the sequence of its parent;
    every other child gets a free sequence that shares the cells of the path above. Where sequences or cells run out,
    those of nodes that will have no further child are freed: the end of each sequence that no open node needs.

    A free sequence has the beginning of the committed text, as far as it was needed when it was last used, and shares
    the rest of it when it is used again.

    paths: every sequence that is not free, with the nodes whose cells it has after the committed text, in order.
    """

    def __init__(
        self, context: LlamaContext, sequences: range | None = None, n_elsewhere: Callable[[], int] = lambda: 0
    ) -> None:
        """sequences: those for this text; None for all of the context. n_elsewhere: gives the cells of other texts."""
        self._context = context
        self._sequences = range(context.config.n_seq_max) if sequences is None else sequences
        self._n_elsewhere = n_elsewhere
        self.begin(0, self._sequences[0])

    def begin(self, n_committed: int, whole: int) -> None:
        """Forget all nodes. n_committed: cells of the committed text. whole: a sequence that has all of them."""
        self._n_committed = n_committed
        sequences = reversed(self._sequences)
        self._place = {ROOT: (whole, n_committed - 1)}  # node that can get children -> sequence, position
        self._free = [sequence for sequence in sequences if sequence != whole]
        self.paths: dict[int, list[DraftNode]] = {whole: []}
        self._n_holders: Counter[int] = Counter()  # node -> number of sequences that have its cell

    @property
    def n_cells(self) -> int:
        """Cells of the committed text and of all nodes."""
        return self._n_committed + len(self._n_holders)

    def expandable(self, parents: Sequence[int], width: int, still_open: set[int]) -> list[int]:
        """Places, ascending, of at most `width` nodes that one pass can expand with the sequences and cells.

        parents: the parent of each node, in the order in which the nodes would be expanded. still_open: the nodes that
        may have further children. Where space is short, other nodes that were expanded are forgotten. Once no sequence
        is left, nodes that continue their parent's sequence can still be expanded.
        """
        wanted = min(width, len(parents))
        places = self._fitting(parents, wanted)
        if len(places) < wanted and self._keep_open(still_open):
            places = self._fitting(parents, wanted)
        return places

    def _fitting(self, parents: Sequence[int], count: int) -> list[int]:
        """Places of the first `count` nodes that fit as the cache is now."""
        n_free = len(self._free)
        count = min(count, self._context.config.n_ctx - self.n_cells - self._n_elsewhere())
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
        """Whether the sequence of `node` goes on after it. False for a node that is not expanded yet."""
        if node not in self._place:
            return False
        sequence, position = self._place[node]
        return self._n_committed + len(self.paths[sequence]) > position + 1

    def _keep_open(self, nodes: set[int]) -> bool:
        """Forget all nodes but `nodes`, and free the sequences and cells that only others need; whether any was."""
        self._place = {node: place for node, place in self._place.items() if node in nodes}
        n_needed: dict[int, int] = {}
        for sequence, position in self._place.values():
            n_needed[sequence] = max(n_needed.get(sequence, 0), position + 1 - self._n_committed)
        is_any_free = False
        for sequence, path in list(self.paths.items()):
            needed = n_needed.get(sequence, 0)
            if len(path) > needed:
                self._context.remove(sequence, self._n_committed + needed)
                self._n_holders -= Counter(node.id for node in path[needed:])
                del path[needed:]
                is_any_free = True
            if sequence not in n_needed:
                del self.paths[sequence]
                self._free.append(sequence)
                is_any_free = True
        return is_any_free

    def add(self, nodes: Sequence[DraftNode]) -> tuple[list[int], list[int]]:
        """The sequence and the position of each of `nodes`, which the next pass decodes.

        The parent of a node must be the root, or have a cell already, or come before it in `nodes`; in the last case it
        may have one child only.
        """
        sequences, positions = [], []
        for node in nodes:
            sequence = self._sequence_behind(node.parent)
            position = self._place[node.parent][1] + 1
            self.paths[sequence].append(node)
            self._n_holders[node.id] += 1
            self._place[node.id] = (sequence, position)
            sequences.append(sequence)
            positions.append(position)
        # llama.cpp needs the positions of each sequence in order, and parents do come before their children.
        return sequences, positions

    def _sequence_behind(self, parent: int) -> int:
        """A sequence that ends with `parent`: its own, or a free sequence that now shares all its cells."""
        sequence, position = self._place[parent]
        if not self._is_continued(parent):
            return sequence
        branch = self._free.pop()
        begin = self._context.sequence_length(branch)
        self._context.copy(sequence, range(branch, branch + 1), begin, position + 1)
        path = self.paths[sequence][: position + 1 - self._n_committed]
        self.paths[branch] = path
        self._n_holders.update(node.id for node in path)
        return branch

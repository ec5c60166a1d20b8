"""The sequences that hold a committed text: one for each leaf path of the next trees.

Marking a cell costs time for each sequence that it is on, so the text is on as many sequences only as recent trees had
leaves; others copy it when a tree needs them.
"""

from __future__ import annotations

import numpy as np

from specrun.llama.context import LlamaContext

_KEPT_PASSES = 32  # after so many passes sequences that none of their trees needed are emptied


class LeafSequences:
    """The sequences of a text, of which the `first` always holds it. most: how many there may be.

    n: how many hold what is cached; the others are empty.
    """

    def __init__(self, context: LlamaContext, first: int, most: int) -> None:
        self._context = context
        self.first = first
        self._most = most
        self.n = 1
        self._n_needed = 1  # most leaves of a tree since the number of sequences was last reconsidered
        self._n_passes = 0  # since then

    @property
    def last(self) -> int:
        """The last sequence that holds the text."""
        return self.first + self.n - 1

    def count(self, n_cached: int) -> None:
        """Find the first sequences that hold the `n_cached` tokens, and empty all others."""
        lengths = self._context.sequence_lengths()[self.first : self.first + self._most]
        holds = lengths == n_cached if n_cached else np.zeros(len(lengths), np.bool_)
        self.n = max(int(np.append(holds, False).argmin()), 1)
        for seq in np.flatnonzero(lengths[self.n :]).tolist():
            self._context.remove(self.first + self.n + seq, 0)
        self._n_needed = min(self._n_needed, self.n)

    def provide(self, n_leaves: int, n_cached: int) -> None:
        """Let at least `n_leaves` sequences hold what is cached, and not many more than recent trees needed."""
        self._n_needed = max(self._n_needed, n_leaves)
        self._n_passes += 1
        if n_leaves <= self.n and self._n_passes < _KEPT_PASSES:
            return
        for seq in range(self._n_needed, self.n):
            self._context.remove(self.first + seq, 0)
        for seq in range(self.n, self._n_needed):
            self._context.copy(self.first, self.first + seq, 0, n_cached)
        self.n, self._n_needed, self._n_passes = self._n_needed, n_leaves, 0

    def share_first_path(self, start: int, end: int) -> None:
        """Let all of them share the first sequence's cells at start .. end - 1 instead of their own."""
        for seq in range(self.first + 1, self.first + self.n):
            self._context.remove(seq, start)
            self._context.copy(self.first, seq, start, end)

    def reset(self) -> None:
        """Note that all are empty."""
        self.n = self._n_needed = 1

"""The selector of a DFlash 2 head: how well the likeliest tokens of a block's rows follow each other.

llama.cpp computes it in the pass of the block. For each row it gives the row's likeliest tokens, the candidates, and a
score of each of them after each candidate of the row before. Its own tools follow the best score from row to row,
which is one path; the same table has all others, so a tree is grown from it without a further pass.
"""

from __future__ import annotations

import numpy as np

from specrun.llama.context import LlamaContext, Logits
from specrun.llama.heads import bindings

_BEGINNING = 1  # the row of the root, for which there are no candidates


class SelectorPart:
    """The selector in the context of a DFlash 2 head. n_candidates: the likeliest tokens of a row that it looks at."""

    def __init__(self, context: LlamaContext, n_candidates: int) -> None:
        bindings.keep_states(context.handle, masked=False)  # llama.cpp puts the table where other heads have states
        self._context = context
        self._n = n_candidates
        self._levels = np.empty((0, 0), np.float32)
        self._candidates = np.empty((0, n_candidates), np.int64)
        self._scores = np.empty((0, n_candidates, n_candidates), np.float32)  # by level, token before, candidate

    def start(self, _root: int, levels: Logits) -> None:
        """Take the block of the last pass. levels: float32[n_levels, n_vocab], its logits without the selector."""
        n_rows = _BEGINNING + len(levels)
        table = bindings.states(self._context.handle, n_rows, self._context.model.n_embd_out)[_BEGINNING:]
        self._candidates = table[:, : self._n].astype(np.int64)
        scores = table[:, self._n : self._n + self._n**2]
        self._scores = scores.reshape(len(levels), self._n, self._n).copy()
        self._levels = levels

    def behind(self, level: int, token: int) -> Logits:
        """float32[n_vocab]: the scores of the level's candidates where `token` is the token before; -inf elsewhere.

        A token that was no candidate has no scores, as one of the text itself may be: the row stays as it is.
        """
        # All scores of the first level are after the root.
        before = [0] if level == 0 else np.flatnonzero(self._candidates[level - 1] == token)
        if len(before) == 0:
            return self._levels[level]
        row = np.full_like(self._levels[level], -np.inf)
        row[self._candidates[level]] = self._scores[level, before[0]]
        return row

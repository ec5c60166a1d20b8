"""Token Recycling (arXiv 2408.08696): for each token, the likeliest next tokens when the target last computed them.

Unlike text matching it has guesses after every token that was in a pass, even if the text never repeats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.sources.source import Guess, Int32Array

N_SUCCESSORS = 8  # next tokens kept for each token
MAX_ROWS = 50_000  # tokens that have successors

_NO_ROW = -1


class TokenRecycling:
    """A source over a table with the last top-8 successors of every token that was in a pass.

    At most `max_rows` tokens have a row; a new one replaces the oldest. A row takes 36 bytes and the index 4 bytes for
    each token of the vocabulary: under 2 MB for a vocabulary of 50k tokens, 2.4 MB for one of 152k.
    Evidence: 7 minus the rank of the successor.
    """

    n_evidence = N_SUCCESSORS

    def __init__(self, n_vocab: int, max_rows: int = MAX_ROWS) -> None:
        self.n_vocab = n_vocab
        self._max_rows = min(max_rows, n_vocab)
        self._row_of = np.full(n_vocab, _NO_ROW, np.int32)
        self._tokens: Int32Array = np.zeros(0, np.int32)  # the token of each row; the rows are a ring
        self._successors: Int32Array = np.zeros((0, N_SUCCESSORS), np.int32)
        self._n_learned = 0  # rows that were ever given to tokens
        self._last: int | None = None  # the last token of the text

    def __len__(self) -> int:
        """Number of tokens that have a row."""
        return min(self._n_learned, self._max_rows)

    def reset(self) -> None:
        """A new text begins. The table stays."""
        self._last = None

    def extend(self, tokens: Sequence[int]) -> None:
        if len(tokens):
            self._last = tokens[-1]

    def learn(self, tokens: Int32Array, top: Int32Array) -> None:
        """Learn from a pass.

        tokens: int32[n], of each node; the last of equals counts. top: int32[n, 8], those after it, likeliest first.
        """
        # np.unique gives the first place of each token, which is the last place before the order was reversed.
        distinct, places = np.unique(tokens[::-1], return_index=True)
        self.take_rows(distinct, top[::-1][places])

    def guesses(self, path: Sequence[int], count: int) -> list[Guess]:
        """The successors of the last token, likeliest first."""
        last = path[-1] if len(path) else self._last
        row = _NO_ROW if last is None else self._row_of[last]
        if row == _NO_ROW:
            return []
        successors = self._successors[row, :count].tolist()
        return [Guess(token, N_SUCCESSORS - 1 - rank) for rank, token in enumerate(successors)]

    def rows(self) -> tuple[Int32Array, Int32Array]:
        """int32[n] tokens that have a row, the oldest row first, and int32[n, 8], their successors."""
        n = len(self)
        order = np.arange(self._n_learned - n, self._n_learned) % max(self._max_rows, 1)
        return self._tokens[order], self._successors[order]

    def take_rows(self, tokens: Int32Array, top: Int32Array) -> None:
        """Set the rows of `tokens`, which must be distinct. top: int32[n, 8], their successors."""
        for token in tokens[self._row_of[tokens] == _NO_ROW].tolist():
            self._add_row(token)
        rows = self._row_of[tokens]
        kept = rows != _NO_ROW  # later tokens may have replaced earlier ones of this call
        self._successors[rows[kept]] = top[kept]

    def _add_row(self, token: int) -> None:
        row = self._n_learned % self._max_rows
        if self._n_learned >= self._max_rows:
            self._row_of[self._tokens[row]] = _NO_ROW
        elif row == len(self._tokens):
            n_more = min(max(len(self._tokens), 1024), self._max_rows - row)
            self._tokens = np.concatenate([self._tokens, np.zeros(n_more, np.int32)])
            self._successors = np.concatenate([self._successors, np.zeros((n_more, N_SUCCESSORS), np.int32)])
        self._tokens[row] = token
        self._row_of[token] = row
        self._n_learned += 1

"""The Markov part of a DSpark head: what the token before a place suggests for it, beside what the block's row says.

llama.cpp adds it to each row for the row's own likeliest token before. In a tree a level has several tokens before it,
and here each of them gets the logits that follow it: the difference between two tokens is a product of thin matrices,
which costs microseconds where a draft pass costs a millisecond.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import MARKOV_AFTER, MARKOV_BEFORE
from specrun.catalog.matrix_rows import MatrixRows, matrix_in, whole_numbers_in
from specrun.llama.context import Logits

# Chosen by hand: the rows of thousands of tokens take longer to gather than a draft pass is worth.
_ALL = 4096  # tokens that can be drafted: up to so many, the logits of all follow the token before
_LIKELIEST = 1024  # of more, only so many of each row; the others, hardly ever drafted, stay as they are


class MarkovPart:
    """before: a row for each token of the vocabulary. after: float32[n_drafted, rank], one for each token that can be
    drafted. drafted: int[n_drafted], these tokens; None where they are the whole vocabulary.
    """

    def __init__(self, before: MatrixRows, after: Logits, drafted: NDArray[np.int64] | None) -> None:
        self._before, self._after, self._drafted = before, after, drafted
        self._rows: dict[int, Logits] = {}  # of `before`
        self._levels = np.empty((0, 0), np.float32)
        self._likeliest: list[int] = []  # token that each level was computed for
        self._candidates: dict[int, tuple[NDArray[np.int64] | slice, Logits]] = {}  # and their rows, by level

    def start(self, root: int, levels: Logits) -> None:
        """Take a new block. levels: float32[n_levels, n_vocab], llama.cpp's logits behind `root`."""
        self._levels = levels
        self._likeliest = [root, *levels[:-1].argmax(axis=1).tolist()]
        self._candidates.clear()

    def behind(self, level: int, token: int) -> Logits:
        """float32[n_vocab]: the logits of the level where `token` is the token before it."""
        row = self._levels[level]
        if token == self._likeliest[level]:
            return row
        if level not in self._candidates:
            self._candidates[level] = self._candidates_of(row)
        tokens, after = self._candidates[level]
        moved = row.copy()
        moved[tokens] += after @ (self._row(token) - self._row(self._likeliest[level]))
        return moved

    def _candidates_of(self, row: Logits) -> tuple[NDArray[np.int64] | slice, Logits]:
        if len(self._after) <= _ALL:
            return slice(None) if self._drafted is None else self._drafted, self._after
        logits = row if self._drafted is None else row[self._drafted]
        best = np.argpartition(logits, -_LIKELIEST)[-_LIKELIEST:]
        return best if self._drafted is None else self._drafted[best], self._after[best]

    def _row(self, token: int) -> Logits:
        if token not in self._rows:
            self._rows[token] = self._before.of([token])[0]
        return self._rows[token]


def markov_part(file: GgufFile) -> MarkovPart | None:
    """The Markov part in a head's file; None for a head without it. Raises ModelFileError if it cannot be decoded."""
    before, after = matrix_in(file, MARKOV_BEFORE), matrix_in(file, MARKOV_AFTER)
    if before is None or after is None:
        return None
    return MarkovPart(before, after.of(slice(None)), whole_numbers_in(file, "d2t"))

"""Which tokens a head can draft: those that the texts use, as far as a bound allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .records import Records

TokenIds = NDArray[np.int64]


@dataclass(frozen=True)
class Vocabulary:
    """Token ids, ascending.

    kept: those that the head can draft; its output has a row for each. read: those that it was shown, whose rows of the
    embedding it learns. n_vocab: tokens of the target.
    """

    kept: TokenIds
    read: TokenIds
    n_vocab: int

    def places(self, tokens: TokenIds) -> TokenIds:
        """The place of each of `n_vocab` tokens within `tokens`, -1 for one that is not there."""
        found = np.full(self.n_vocab, -1, np.int64)
        found[tokens] = np.arange(len(tokens))
        return found


def vocabulary_of(records: Records, n_vocab: int, bound: int) -> Vocabulary:
    """The vocabulary of a head that learns these texts.

    Tokens are ranked by how often the target is expected to write them: the sum of its probabilities over all
    positions, of which each record has the largest. bound: most tokens that are kept.
    """
    expected, read = np.zeros(n_vocab), np.zeros(n_vocab, np.bool_)
    for part in records.parts:
        np.add.at(expected, part["likely"], part["chance"].astype(np.float64))
        read[part["token"]] = True
    ranked = np.argsort(-expected, kind="stable")[: min(bound, np.count_nonzero(expected))]
    return Vocabulary(np.sort(ranked), np.flatnonzero(read), n_vocab)

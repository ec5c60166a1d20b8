"""What a trimmed draft reads in place of the target's tokens, and its logits as rows of the whole vocabulary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specrun.catalog.pairs import Trimmed
from specrun.llama.batch import Batch, Floats, Int32Array

_LACKED = -1  # in place of the row of a token that the draft lacks


class TrimmedTokens:
    """The tokens of a trimmed draft in the file `path`, for one context."""

    def __init__(self, path: Path, trimmed: Trimmed) -> None:
        self._trimmed = trimmed
        n_vocab = len(trimmed.offsets)
        self._row_of = np.full(n_vocab, _LACKED, np.int32)
        self._row_of[trimmed.tokens] = np.arange(len(trimmed.tokens), dtype=np.int32)
        # As a plain array, because slicing a memory map takes longer.
        self._bytes: NDArray[np.uint8] = np.asarray(np.memmap(path, np.uint8, "r"))
        self._whole: Floats = np.empty((0, n_vocab), np.float32)

    def read(self, batch: Batch) -> Batch:
        """`batch`, which has ids of the whole vocabulary, as the draft can read it: tokens by their rows, or embeddings
        where it lacks one of them, because a pass of llama.cpp reads either tokens or embeddings.
        """
        rows: Int32Array = self._row_of[batch.tokens]
        if _LACKED not in rows:
            return replace(batch, tokens=rows)
        return replace(batch, states=self._embeddings(batch.tokens))

    def _embeddings(self, tokens: Int32Array) -> Floats:
        import gguf

        trimmed = self._trimmed
        encoded = self._bytes[trimmed.offsets[tokens][:, None] + np.arange(trimmed.row_bytes)]
        rows = gguf.quants.dequantize(encoded, gguf.GGMLQuantizationType[trimmed.type])
        return np.multiply(rows, np.float32(trimmed.scale), dtype=np.float32)

    def whole(self, rows: Floats) -> Floats:
        """float32[n, n_vocab]: `rows` with a logit for every token, minus infinity for those that the draft lacks. The
        next call overwrites them.
        """
        if len(rows) > len(self._whole):
            self._whole = np.full((len(rows), self._whole.shape[1]), -np.inf, np.float32)
        for whole, row in zip(self._whole, rows, strict=False):  # twice as fast as all rows at once
            whole[self._trimmed.tokens] = row
        return self._whole[: len(rows)]

"""What a trimmed draft reads in place of the target's tokens, and its logits as rows of the whole vocabulary."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specrun.catalog.architectures import does
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.trimmed import trimmed_in
from specrun.llama.batch import Batch, Floats, Int32Array

_LACKED = -1  # in place of the row of a token that the draft lacks


class TrimmedTokens:
    """The tokens of the trimmed draft in the file `path`, for one context."""

    def __init__(self, path: Path) -> None:
        file = GgufFile.read(path)
        trimmed = trimmed_in(file)
        assert trimmed, "the model is a trimmed draft"
        self._tokens = trimmed.tokens
        self._offsets, self._row_bytes = trimmed.offsets, trimmed.row_bytes
        self._type = trimmed.type
        self._row_of = np.full(file.n_vocab, _LACKED, np.int32)
        self._row_of[trimmed.tokens] = np.arange(len(trimmed.tokens), dtype=np.int32)
        # As a plain array, because slicing a memory map takes longer.
        self._bytes: NDArray[np.uint8] = np.asarray(np.memmap(path, np.uint8, "r"))
        self._scale = np.float32(math.sqrt(file.n_embd) if does("scaled_tokens", file.architecture) else 1)
        self._whole: Floats = np.empty((0, file.n_vocab), np.float32)

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

        encoded = self._bytes[self._offsets[tokens][:, None] + np.arange(self._row_bytes)]
        rows = gguf.quants.dequantize(encoded, gguf.GGMLQuantizationType[self._type])
        return np.multiply(rows, self._scale, dtype=np.float32)

    def whole(self, rows: Floats) -> Floats:
        """float32[n, n_vocab]: `rows` with a logit for every token, minus infinity for those that the draft lacks. The
        next call overwrites them.
        """
        if len(rows) > len(self._whole):
            self._whole = np.full((len(rows), self._whole.shape[1]), -np.inf, np.float32)
        for whole, row in zip(self._whole, rows, strict=False):  # twice as fast as all rows at once
            whole[self._tokens] = row
        return self._whole[: len(rows)]

"""A llama.cpp batch of rows of numbers instead of tokens."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np

from specrun.llama.heads.bindings import Floats


class RowsBatch:
    """struct: what llama.cpp takes. It points into this object, which must live until the call is over.

    rows: float32[n, width]. start: the position of the first; the others follow. seq: their sequence.
    outputs: whether results of the rows are wanted.
    """

    def __init__(self, rows: Floats, start: int, seq: int, outputs: bool) -> None:
        n = len(rows)
        self._rows = np.ascontiguousarray(rows, np.float32)
        self._positions = np.arange(start, start + n, dtype=np.int32)
        self._counts, self._outputs = np.ones(n, np.int32), np.full(n, outputs, np.int8)
        self._sequence = np.array([seq], np.int32)
        self._sequences = np.full(n, self._sequence.ctypes.data, np.uintp)
        pointer = ctypes.POINTER
        self.struct = llama_cpp.llama_batch(
            n_tokens=n,
            token=None,
            embd=self._rows.ctypes.data_as(pointer(ctypes.c_float)),
            pos=self._positions.ctypes.data_as(pointer(llama_cpp.llama_pos)),
            n_seq_id=self._counts.ctypes.data_as(pointer(ctypes.c_int32)),
            seq_id=self._sequences.ctypes.data_as(pointer(pointer(llama_cpp.llama_seq_id))),
            logits=self._outputs.ctypes.data_as(pointer(ctypes.c_int8)),
        )

"""A head's context: it reads each token with a hidden state, and gives a hidden state with each row of logits."""

from __future__ import annotations

import ctypes
import time

import llama_cpp
import numpy as np

from specrun.errors import LlamaError
from specrun.llama import library
from specrun.llama.context import ContextConfig, HeadSetup, LlamaContext
from specrun.llama.heads import bindings
from specrun.llama.heads.bindings import Floats
from specrun.llama.loaded_model import LlamaModel

_TEXT = 0  # the sequence whose positions what is encoded pretends to go on with


class RowsBatch:
    """A llama.cpp batch of rows of numbers instead of tokens.

    struct: what llama.cpp takes. It points into this object, which must live until the call is over.

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


class HeadContext(LlamaContext):
    """The KV cache of a head.

    setup: see `HeadSetup`.

    llama.cpp gives logits for all tokens of a head's pass or for none: where only some are wanted, the rows belong
    to other tokens. Raises the errors of `LlamaContext`, and LlamaError if this build cannot run heads.
    """

    def __init__(self, model: LlamaModel, config: ContextConfig, setup: HeadSetup) -> None:
        bindings.check()
        super().__init__(model, config, head=setup)
        self.state_width = setup.state_width
        bindings.keep_states(self.handle, masked=True)

    def states(self, n_rows: int) -> Floats:
        """float32[n_rows, state_width]: the head's states behind the tokens of the last pass, all of which had logits.

        A view that the next pass overwrites.
        """
        return bindings.states(self.handle, n_rows, self.state_width)

    def encode(self, rows: Floats) -> Floats:
        """float32[n, state_width]: what the head makes of the target's rows, float32[n, width], before it reads them.

        The cache stays as it is. At most `n_batch` rows.
        """
        n = len(rows)
        if not 0 < n <= self.config.n_batch:  # llama.cpp would end the process
            raise ValueError(f"{n} rows to encode; the context takes 1 to {self.config.n_batch}")
        # llama.cpp checks the positions, though it does not use them.
        batch = RowsBatch(rows, int(self.sequence_lengths()[_TEXT]), _TEXT, outputs=True)
        started = time.perf_counter()
        with library.CapturedErrors() as errors:
            code = llama_cpp.llama_encode(self.handle, batch.struct)
            llama_cpp.llama_synchronize(self.handle)
        self.decode_seconds += time.perf_counter() - started
        if code != 0:
            raise LlamaError(f"llama.cpp failed on a head's encoder ({errors[-1] if errors else f'code {code}'})")
        return self.states(n)

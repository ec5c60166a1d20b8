"""A llama.cpp context: one KV cache, passes over it, and the lengths of its sequences."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specrun import clock, interrupts
from specrun.errors import ContextFullError, LlamaError
from specrun.llama import library, tiled_kernels
from specrun.llama.batch import Batch, BatchBuffer
from specrun.llama.loaded_model import LlamaModel
from specrun.llama.parameters import ContextConfig, ThreadPool, context_parameters, needs_pool
from specrun.llama.streaming.cached_experts import CachedExperts
from specrun.llama.streaming.streamed_weights import StreamedWeights

__all__ = ["ALL_SEQUENCES", "ContextConfig", "HeadSetup", "LlamaContext", "Logits"]

Logits = NDArray[np.float32]
# What llama.cpp saves of a sequence: a copy in memory, uint8[n], or a file that begins with it.
SequenceState = NDArray[np.uint8] | Path

ALL_SEQUENCES = -1  # as the `seq` of `LlamaContext.remove`
_TO_THE_END = -1
_ALLOCATION_FAILED = -2  # what llama_decode returns
_WHOLE_STATE, _RECURRENT_PART = 0, 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_HEAD_OF_A_COPY = 8  # bytes of a copy that a file does not have: a magic number and the sequence
_NO_TOKENS = (llama_cpp.llama_token * 1)()  # of a file's text, which is kept elsewhere


@dataclass(frozen=True)
class HeadSetup:
    """What makes a context that of a head."""

    target: LlamaContext  # whose embedding and output matrix the head may use; it is closed later
    state_width: int  # floats of the hidden state that each token is read with
    is_mtp: bool = False  # whether the head is the MTP layers of the model, and the others are not computed
    # Whether the target's cells are its only ones. Make its context before the target has read anything, as llama.cpp
    # empties the cells then. The tokens of a pass take none, and may share a position; `remove` would empty them.
    shares_cells: bool = False


class LlamaContext(library.Closing):
    """One KV cache of `model`. Close it before the model.

    weights: those that are streamed while a pass is computed; None where llama.cpp alone holds the weights. They are
        closed after the context.
    head: what makes it the context of a head; None for a model.
    handle: the C pointer, for heads. decode_seconds, n_passes: time spent in `decode` so far, and passes.
    can_forget: whether `forget` is possible: positions of some architectures cannot be changed.
    n_snapshots: recurrent states that llama.cpp keeps of a pass; 0 for an architecture that keeps none.
    n_last_pass: tokens of the last pass, 0 once nothing of it can be taken back any more; None if it failed or was
        interrupted, so that a recurrent state may be wrong.
    Raises OutOfMemoryError, UsageError (a refused cache type, or kernels that this process cannot change any more) or
    LlamaError if llama.cpp cannot make the context.
    """

    def __init__(
        self,
        model: LlamaModel,
        config: ContextConfig,
        weights: StreamedWeights | CachedExperts | None = None,
        head: HeadSetup | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.weights = weights
        self._shares_cells = head is not None and head.shares_cells
        self.decode_seconds = 0.0
        if 0 < config.n_snapshots >= config.n_batch - 1:  # llama.cpp would abort in the first pass
            raise ValueError(f"{config.n_snapshots} snapshots need passes of more tokens than {config.n_batch}")
        tiled_kernels.settle(config.settings.tiled)
        params = context_parameters(config)
        if weights:
            params.cb_eval = weights.gate.callback
        if head:
            params.ctx_other = head.target.handle
            params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP if head.is_mtp else params.ctx_type
        self.handle: Any = None
        self._pool: ThreadPool | None = None
        try:
            # llama.cpp logs much here, and no exception can be raised through it.
            with interrupts.held(), library.CapturedErrors() as errors:
                self.handle = llama_cpp.llama_init_from_model(model.handle, params)
        except BaseException:
            self.close()
            raise
        if not self.handle:
            raise library.context_failure(f"a context of {config.n_ctx} tokens for {model.path.name}", errors)
        most_threads = max(params.n_threads, params.n_threads_batch)
        if most_threads > 1 and needs_pool():
            self._pool = ThreadPool(self.handle, most_threads)
        self._memory = llama_cpp.llama_get_memory(self.handle)
        self.can_forget = bool(llama_cpp.llama_memory_can_shift(self._memory))
        self.n_snapshots = int(llama_cpp.llama_n_rs_seq(self.handle))
        self.n_last_pass: int | None = 0
        self.n_passes = 0
        self._buffer = BatchBuffer(config.n_call, config.n_seq_max, head.state_width if head else 0)
        self._seq_length = np.zeros(config.n_seq_max, np.int32)
        # Making a view takes as long as filling a batch, and llama.cpp's rows mostly lie where they lay.
        self._rows: Logits = np.empty((0, model.n_vocab), np.float32)
        self._rows_place = (0, 0)  # address, rows
        # Ctrl-C may come between what llama.cpp does and what is noted of it. Then its own count is asked.
        self._is_counted = True

    def close(self) -> None:
        """Free the cache, the compute buffers and the threads. Safe to call twice."""
        if self.handle:
            llama_cpp.llama_free(self.handle)
            self.handle = None
        if self._pool:
            self._pool.close()

    def set_threads(self, n: int) -> None:
        """Let later passes use `n` threads, at most as many as at first; large ones as many as the settings say."""
        llama_cpp.llama_set_n_threads(self.handle, n, self.config.settings.threads_batch or n)

    def decode(self, batch: Batch) -> Logits:
        """One pass. Returns float32[n, n_vocab], the logits of the n tokens with `outputs`, in batch order.

        The rows are a view that the next pass overwrites. Raises ContextFullError if the cache has no room for the
        batch, OutOfMemoryError if memory runs out, and LlamaError if llama.cpp fails otherwise or streamed weights
        cannot be read.
        """
        seq_length = self._lengths()
        if not self._shares_cells:
            seq_length = batch.lengths_after(self.config.n_call, self.config.n_outputs, seq_length)
        weights = self.weights
        if weights:
            weights.begin_pass()
        self.model.suit(len(batch))
        self.n_last_pass = None
        self.compute(llama_cpp.llama_decode, self._buffer.fill(batch), "a pass")
        self._seq_length, self._is_counted = seq_length, True
        if weights and weights.gate.failure:
            raise weights.gate.failure  # the cells of this pass are filled, but worthless: whoever goes on removes them
        self.n_last_pass = len(batch)
        self.n_passes += 1
        return self._logits(batch.n_outputs)

    def compute(self, function: Callable[[Any, Any], int], batch: Any, what: str) -> None:
        """Let a function of llama.cpp compute a batch, a C struct. what: what it computes, for errors of `decode`."""
        started, self._is_counted = clock.now(), False
        with library.CapturedErrors() as errors:
            code = function(self.handle, batch)
            llama_cpp.llama_synchronize(self.handle)
        self.decode_seconds += clock.now() - started
        if code == 1:
            raise ContextFullError(f"the context of {self.config.n_ctx} tokens is full; give a larger --ctx-size")
        if code != 0 and (failure := library.memory_failure(errors)):
            raise failure
        if code == _ALLOCATION_FAILED:
            raise library.out_of_memory(f"{what} got none")
        if code != 0:
            raise LlamaError(f"llama.cpp failed on {what} ({errors[-1] if errors else f'code {code}'})")

    def _logits(self, n_outputs: int) -> Logits:
        if n_outputs == 0:
            return np.empty((0, self.model.n_vocab), np.float32)
        pointer = llama_cpp.llama_get_logits(self.handle)
        place = ctypes.addressof(pointer.contents), n_outputs
        if place != self._rows_place:
            self._rows = np.ctypeslib.as_array(pointer, shape=(n_outputs, self.model.n_vocab))
            self._rows_place = place
        return self._rows

    def remove(self, seq: int, start: int, end: int = _TO_THE_END) -> None:
        """Remove positions start .. end - 1, or all from `start` on, from `seq` (or ALL_SEQUENCES). Raises LlamaError.

        end: only for a sequence that no pass continues, as its last positions may stay.
        """
        ids = slice(None) if seq == ALL_SEQUENCES else slice(seq, seq + 1)
        seq_length = self._lengths()
        if max(seq_length[ids].tolist()) <= start:  # asked in every pass; numpy's maximum takes several times as long
            return  # recurrent models refuse even an empty removal
        self._is_counted = False
        if seq == ALL_SEQUENCES and start == 0:
            llama_cpp.llama_memory_clear(self._memory, False)
        else:
            self._take_back(seq, start, end)
        np.minimum(seq_length[ids], start if end == _TO_THE_END else self.sequence_end(seq), out=seq_length[ids])
        self._is_counted = True

    def forget(self, seq: int, start: int, end: int) -> None:
        """Remove positions start .. end - 1 from `seq`, and move those after them down. No other sequence may have any
        of these cells. Raises LlamaError.
        """
        self._is_counted = False
        self._take_back(seq, start, end)
        llama_cpp.llama_memory_seq_add(self._memory, seq, end, _TO_THE_END, start - end)

    def copy(self, source: int, destinations: range, start: int, end: int) -> None:
        """Let the sequences `destinations` have the cells of `source` at start .. end - 1, and no own ones after start.

        They must have everything before. Raises LlamaError.
        """
        if not destinations:
            return
        seq_length = self._lengths()
        if seq_length[source] < end or (seq_length[destinations.start : destinations.stop] < start).any():
            raise ValueError(f"the sequences {destinations} cannot continue at {start} with {source}")
        lengths = seq_length.tolist()
        self._is_counted = False
        for seq in destinations:
            if lengths[seq] > start:
                self._take_back(seq, start)
            llama_cpp.llama_memory_seq_cp(self._memory, source, seq, start, end)
        seq_length[destinations.start : destinations.stop] = end
        self._is_counted = True

    def _take_back(self, seq: int, start: int, end: int = _TO_THE_END) -> None:
        if not llama_cpp.llama_memory_seq_rm(self._memory, seq, start, end):
            raise LlamaError("llama.cpp cannot take tokens out of this model's cache")

    def keep(self, source: int, spare: int, start: int) -> None:
        """Let `spare`, a sequence that no pass continues, keep the cells of `source` from position `start` on taken."""
        seq_length = self._lengths()
        self._is_counted = False
        llama_cpp.llama_memory_seq_cp(self._memory, source, spare, start, _TO_THE_END)
        seq_length[spare] = max(seq_length[spare], seq_length[source])
        self._is_counted = True

    def sequence_state(self, seq: int, recurrent_only: bool = False) -> NDArray[np.uint8]:
        """uint8[n]: positions, all K and V and the recurrent state of `seq` as llama.cpp would save them.

        recurrent_only: leave out what attention has, as `return_to` wants it. Raises LlamaError.
        """
        flags = _RECURRENT_PART if recurrent_only else _WHOLE_STATE
        size = int(llama_cpp.llama_state_seq_get_size_ext(self.handle, seq, flags))
        state = np.empty(size, np.uint8)
        if llama_cpp.llama_state_seq_get_data_ext(self.handle, _bytes_of(state), size, seq, flags) != size:
            raise LlamaError(f"llama.cpp could not copy its {'recurrent state' if recurrent_only else 'KV cache'}")
        return state

    def return_to(self, seq: int, end: int, state: NDArray[np.uint8]) -> None:
        """Give `seq` the recurrent state of its first `end` tokens, and remove the others. Raises LlamaError."""
        self._is_counted, self.n_last_pass = False, None
        read = llama_cpp.llama_state_seq_set_data_ext(self.handle, _bytes_of(state), len(state), seq, _RECURRENT_PART)
        # The state comes first: a state that lies after `end` would refuse the removal. llama.cpp's count of the
        # sequence is that of the state now, and does not tell that attention has more cells.
        if read != len(state) or not llama_cpp.llama_memory_seq_rm(self._memory, seq, end, _TO_THE_END):
            raise LlamaError("llama.cpp could not take back its recurrent state")
        self.n_last_pass = 0

    def write_sequence(self, seq: int, path: Path) -> None:
        """Write what `sequence_state` would give to a file, which takes memory for a layer only. Raises LlamaError."""
        with library.CapturedErrors() as errors:
            n = int(llama_cpp.llama_state_seq_save_file(self.handle, os.fsencode(path), seq, _NO_TOKENS, 0))
        if n == 0 or path.stat().st_size != n:  # the end may be lost when the file is closed, on a full disk
            raise LlamaError(f"llama.cpp could not write its KV cache ({errors[-1] if errors else 'not all of it'})")

    def set_sequence_state(self, seq: int, state: SequenceState) -> None:
        """Fill `seq`, which must be empty, with what was saved. Raises LlamaError if it does not fit."""
        self._is_counted, self.n_last_pass = False, None
        if isinstance(state, Path):
            name, n_tokens = os.fsencode(state), ctypes.byref(ctypes.c_size_t())
            has_read = llama_cpp.llama_state_seq_load_file(self.handle, name, seq, _NO_TOKENS, 1, n_tokens) > 0
        else:
            n = llama_cpp.llama_state_seq_set_data(self.handle, _bytes_of(state), len(state), seq)
            has_read = n == len(state)
        if not has_read:
            raise LlamaError("llama.cpp could not read a saved KV cache")
        self.n_last_pass = 0

    def sequence_bytes(self, seq: int) -> int:
        """Bytes of `sequence_state`."""
        return int(llama_cpp.llama_state_seq_get_size(self.handle, seq))

    def sequence_end(self, seq: int) -> int:
        """Number of positions of `seq` by llama.cpp's own count."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def sequence_length(self, seq: int) -> int:
        """Number of positions of `seq`."""
        return int(self._lengths()[seq])

    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[n_seq_max]: number of positions of each sequence."""
        return self._lengths().copy()

    def _lengths(self) -> NDArray[np.int32]:
        if not self._is_counted:
            self._seq_length = np.array([self.sequence_end(seq) for seq in range(self.config.n_seq_max)], np.int32)
            self._is_counted = True
        return self._seq_length


def file_parts(state: NDArray[np.uint8]) -> tuple[bytes, memoryview]:
    """What `LlamaContext.write_sequence` would have written where a copy was made."""
    magic, version, n_tokens = llama_cpp.LLAMA_STATE_SEQ_MAGIC, llama_cpp.LLAMA_STATE_SEQ_VERSION, 0
    return struct.pack("=III", magic, version, n_tokens), state[_HEAD_OF_A_COPY:].data


def _bytes_of(state: NDArray[np.uint8]) -> Any:
    """The array's memory as llama.cpp's functions take it."""
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))

"""A llama.cpp context: one KV cache, passes over it, and the bookkeeping of its sequences."""

from __future__ import annotations

import time
from dataclasses import dataclass

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specrun.errors import ContextFullError, LlamaError
from specrun.llama import library
from specrun.llama.batch import Batch, BatchBuffer
from specrun.llama.model import LlamaModel, raise_out_of_memory

Logits = NDArray[np.float32]

ALL_SEQUENCES = -1
_TO_THE_END = -1
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ in llama.cpp's llama-cparams.h

_KV_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8}  # ggml_type


@dataclass(frozen=True)
class ContextConfig:
    """How a context is set up. n_ctx: cells of the KV cache. n_seq_max: sequence ids, so leaf paths of a tree.

    n_batch: most tokens of one pass. n_outputs: most logits rows of one pass. n_threads: CPU threads.
    type_k, type_v: ggml types of the KV cache.
    """

    n_ctx: int
    n_seq_max: int
    n_batch: int
    n_outputs: int
    n_threads: int
    type_k: str = "f16"
    type_v: str = "f16"


class LlamaContext:
    """One KV cache of `model`. Logits returned by `decode` are views that the next pass overwrites."""

    def __init__(self, model: LlamaModel, config: ContextConfig) -> None:
        self.model = model
        self.config = config
        self.decode_seconds = 0.0
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = config.n_ctx
        params.n_batch = params.n_ubatch = config.n_batch
        params.n_seq_max = config.n_seq_max
        # llama.cpp reserves logits for every output that could be wanted: n_batch rows would be 311 MB at 152k tokens.
        params.n_outputs_max = max(config.n_outputs, config.n_seq_max)
        params.n_threads = params.n_threads_batch = config.n_threads
        params.type_k = _KV_TYPES[config.type_k]
        params.type_v = _KV_TYPES[config.type_v]
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.kv_unified = True
        params.swa_full = True  # a branch may need cells that a sliding window would have dropped
        params.no_perf = True
        with library.captured_errors() as errors:
            self._context = llama_cpp.llama_init_from_model(model.handle, params)
        if not self._context:
            raise_out_of_memory(f"a context of {config.n_ctx} tokens for {model.path.name}", errors)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._buffer = BatchBuffer(config.n_batch, config.n_seq_max)
        self._seq_length = np.zeros(config.n_seq_max, np.int32)

    def close(self) -> None:
        """Free the cache and the compute buffers. Safe to call twice."""
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = None

    def __enter__(self) -> LlamaContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decode(self, batch: Batch) -> Logits:
        """One pass. Returns float32[outputs wanted, n_vocab], in batch order.

        Raises `ContextFullError` if the cache has no room for the batch, `LlamaError` if llama.cpp fails.
        """
        seq_length = batch.check(self.model.n_vocab, self.config.n_batch, self.config.n_outputs, self._seq_length)
        started = time.perf_counter()
        with library.captured_errors() as errors:
            code = llama_cpp.llama_decode(self._context, self._buffer.fill(batch))
            llama_cpp.llama_synchronize(self._context)
        self.decode_seconds += time.perf_counter() - started
        if code == 1:
            raise ContextFullError(f"the context of {self.config.n_ctx} tokens is full; give a larger --ctx-size")
        if code != 0:
            raise LlamaError(f"llama.cpp failed on a pass ({errors[-1] if errors else f'code {code}'})")
        self._seq_length = seq_length
        return self._logits(int(batch.outputs.sum()))

    def _logits(self, n_outputs: int) -> Logits:
        n_vocab = self.model.n_vocab
        if n_outputs == 0:
            return np.empty((0, n_vocab), np.float32)
        pointer = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(n_outputs, n_vocab))

    def remove(self, seq: int, start: int) -> None:
        """Drop position `start` and all after it from sequence `seq` (or `ALL_SEQUENCES`)."""
        ids = slice(None) if seq == ALL_SEQUENCES else slice(seq, seq + 1)
        if self._seq_length[ids].max() <= start:
            return  # a recurrent model refuses even to drop nothing
        if seq == ALL_SEQUENCES and start == 0:
            llama_cpp.llama_memory_clear(self._memory, False)  # the one way that recurrent models allow, too
        elif not llama_cpp.llama_memory_seq_rm(self._memory, seq, start, _TO_THE_END):
            raise LlamaError("llama.cpp cannot take tokens back from this model's cache")
        np.minimum(self._seq_length[ids], start, out=self._seq_length[ids])

    def copy(self, source: int, destination: int, start: int, end: int) -> None:
        """Let sequence `destination`, which must end at `start`, share the cells of `source` at `start..end-1`."""
        if self._seq_length[destination] != start or self._seq_length[source] < end:
            raise ValueError(f"sequence {destination} cannot continue at {start} with {source}")
        llama_cpp.llama_memory_seq_cp(self._memory, source, destination, start, end)
        self._seq_length[destination] = end

    def sequence_end(self, seq: int) -> int:
        """Number of positions that llama.cpp itself holds for `seq` (for tests: equals our own count)."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[n_seq_max]: our own count of positions in each sequence."""
        return self._seq_length.copy()

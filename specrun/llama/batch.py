"""A llama.cpp batch as numpy arrays.

llama.cpp answers most malformed batches, such as one whose positions do not follow those in the cache, with an error,
and aborts the process on others, such as a token without a sequence id. Those raise ValueError here, which is always a
bug in specrun.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import add

import llama_cpp
import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """The n tokens of one pass. Token i belongs to the sequence ids first_seq[i] .. first_seq[i] + n_seq[i] - 1.

    A range suffices for trees, as in depth-first order the leaves below a node have consecutive numbers.

    tokens, positions, first_seq, n_seq: int32[n].
    outputs: bool[n], true where a row of logits is wanted.
    states: float32[n, width], the hidden state that a head reads with each token; None where only tokens are read.
    """

    tokens: Int32Array
    positions: Int32Array
    first_seq: Int32Array
    n_seq: Int32Array
    outputs: NDArray[np.bool_]
    states: Floats | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def n_outputs(self) -> int:
        """Wanted rows of logits."""
        return self.outputs.tolist().count(True)

    def padded(self, size: int, seq: int, position: int) -> Batch:
        """The batch with further tokens after it, `size` in all, which continue sequence `seq` from `position` on.

        They repeat the last token, so that they read few further experts of a mixture. No logits of them are wanted.
        """
        n = size - len(self)
        if n == 0:
            return self
        return joined([self, committed_tokens([int(self.tokens[-1])] * n, position, 1, 0, seq)])

    def lengths_after(self, n_batch: int, n_outputs_max: int, seq_length: Int32Array) -> Int32Array:
        """Return int32[n_seq_max], the lengths of the sequences after a pass over this batch.

        seq_length: int32[n_seq_max], the positions that each sequence holds in the cache before it. Raises ValueError
        if llama.cpp would abort on the batch.
        """
        n, n_seq_max = len(self), len(seq_length)
        if not 0 < n <= n_batch:
            raise ValueError(f"a batch of {n} tokens; the context takes 1 to {n_batch}")
        # Most batches are small, and for these Python's own numbers are faster than numpy's.
        first_seq, n_seq = self.first_seq.tolist(), self.n_seq.tolist()
        if min(n_seq) < 1:
            raise ValueError("a token without a sequence id")
        if min(first_seq) < 0 or max(map(add, first_seq, n_seq)) > n_seq_max:
            raise ValueError(f"a sequence id outside 0..{n_seq_max - 1}")
        if self.n_outputs > n_outputs_max:
            raise ValueError(f"more than {n_outputs_max} logits rows wanted")
        begins, ends = (
            np.bincount(at, minlength=n_seq_max + 1) for at in (self.first_seq, self.first_seq + self.n_seq)
        )
        return seq_length + np.cumsum(begins - ends)[:-1].astype(np.int32)


class BatchBuffer:
    """The arrays that `llama_decode` reads, allocated once per context.

    struct: what llama.cpp takes. It points into this object, which must live until the call is over.
    state_width: floats of a row of `Batch.states`; 0 where there are none.
    in_place: whether states are read in place of the tokens, not with them.
    """

    def __init__(self, n_batch: int, n_seq_max: int, state_width: int = 0, in_place: bool = False) -> None:
        self._states = np.zeros((n_batch, state_width), np.float32)
        self._all_seqs = np.arange(n_seq_max, dtype=np.int32)
        self._pointers = self._all_seqs.ctypes.data + np.arange(n_seq_max, dtype=np.uintp) * np.uintp(4)
        self._tokens = np.zeros(n_batch, np.int32)
        self.positions = np.zeros(n_batch, np.int32)
        self._n_seq = np.zeros(n_batch, np.int32)
        self._seq_pointers = np.zeros(n_batch, np.uintp)
        self._outputs = np.zeros(n_batch, np.int8)
        pointer = ctypes.POINTER
        self.struct = llama_cpp.llama_batch(
            n_tokens=0,
            token=None if in_place else self._tokens.ctypes.data_as(pointer(llama_cpp.llama_token)),
            embd=self._states.ctypes.data_as(pointer(ctypes.c_float)) if state_width else None,
            pos=self.positions.ctypes.data_as(pointer(llama_cpp.llama_pos)),
            n_seq_id=self._n_seq.ctypes.data_as(pointer(ctypes.c_int32)),
            seq_id=self._seq_pointers.ctypes.data_as(pointer(pointer(llama_cpp.llama_seq_id))),
            logits=self._outputs.ctypes.data_as(pointer(ctypes.c_int8)),
        )

    def fill(self, batch: Batch) -> llama_cpp.llama_batch:
        """The C struct that holds `batch`, valid until the next call."""
        n = len(batch)
        self._tokens[:n] = batch.tokens
        self.positions[:n] = batch.positions
        self._n_seq[:n] = batch.n_seq
        self._seq_pointers[:n] = self._pointers[batch.first_seq]
        self._outputs[:n] = batch.outputs
        if batch.states is not None:
            self._states[:n] = batch.states
        self.struct.n_tokens = n
        return self.struct


def rows_batch(rows: Floats, start: int, seq: int, outputs: bool, n_dimensions: int = 1) -> BatchBuffer:
    """A batch of rows of numbers instead of tokens.

    rows: float32[n, width]. start: the position of the first; the others follow. seq: their sequence.
    outputs: whether results of the rows are wanted. n_dimensions: as `LlamaModel.n_dimensions`.
    """
    n, width = rows.shape
    buffer = BatchBuffer(n, seq + 1, width, in_place=True)
    batch = committed_tokens([0] * n, start, 1, n_outputs=n if outputs else 0, first_seq=seq)
    buffer.fill(replace(batch, states=rows))
    if n_dimensions > 1:
        # llama.cpp gives tokens their positions in all dimensions, but not rows: those of text have the same position
        # in all but the last dimension, where they have 0.
        buffer.positions = np.concatenate([*[batch.positions] * (n_dimensions - 1), np.zeros_like(batch.positions)])
        buffer.struct.pos = buffer.positions.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_pos))
    return buffer


def committed_tokens(tokens: list[int], start: int, n_seq: int, n_outputs: int, first_seq: int = 0) -> Batch:
    """A batch that appends committed `tokens` from position `start` on, on `n_seq` sequences from `first_seq` on.

    Rows of logits are wanted for the last `n_outputs` tokens.
    """
    n = len(tokens)
    # A plain pass may take less than a millisecond, and filling arrays of one number takes longer than making them.
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.arange(start, start + n, dtype=np.int32),
        first_seq=np.array([first_seq] * n, np.int32),
        n_seq=np.array([n_seq] * n, np.int32),
        outputs=np.array([False] * (n - n_outputs) + [True] * n_outputs),
    )


def joined(batches: Sequence[Batch]) -> Batch:
    """The tokens of all `batches`, which have no hidden states, one after the other."""
    if len(batches) == 1:
        return batches[0]
    arrays = [(batch.tokens, batch.positions, batch.first_seq, batch.n_seq, batch.outputs) for batch in batches]
    return Batch(*map(np.concatenate, zip(*arrays, strict=True)))


def drafted_nodes(
    tokens: list[int], positions: Sequence[int], sequences: Sequence[int], states: Floats | None = None
) -> Batch:
    """A batch of nodes of a tree, each on one sequence. Rows of logits are wanted for all. states: as in `Batch`."""
    n = len(tokens)
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        first_seq=np.array(sequences, np.int32),
        n_seq=np.ones(n, np.int32),
        outputs=np.ones(n, np.bool_),
        states=states,
    )


def readable(tokens: Sequence[int], n_vocab: int) -> list[int]:
    """`tokens` with 0 in place of those that a draft of `n_vocab` tokens does not have."""
    return [token if token < n_vocab else 0 for token in tokens]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two texts, in tokens."""
    if type(a) is not type(b):  # a list never equals a tuple
        a, b = list(a), list(b)
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the usual case, decided by one comparison in C
        return n
    low = 0  # all before it are equal, and one of those from it to n - 1 is not: halves are compared in C, too
    while n - low > 1:
        middle = (low + n) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            n = middle
    return low

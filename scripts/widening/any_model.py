"""Widened models of more sizes than `specrun demo` needs: copies of the hidden state and of key/value heads, and wider
heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from specrun.making.widening import UNIT, Blocks, Shape, Source, Tensor, Type, WiderModel, read_blocks

TYPES: dict[str, Type] = {
    name: getattr(Type, name.upper())
    for name in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "mxfp4")
}


_FREQ_BASE, _DEFAULT_FREQ_BASE = "llama.rope.freq_base", 10_000.0


class AnyWiderModel(WiderModel):
    """As `WiderModel`, for any number of query heads to a key/value head, for wider heads, and bit for bit at any
    multiple of the width (docs/widening.md).
    """

    @property
    def _copies(self) -> int:
        """How many copies of the source's hidden state the wider one holds.

        The count that makes the norms' scale a power of two, where there is one. A block is left for the marker.
        """
        source, target = self.source.shape.embd, self.target.embd
        copies, rest = divmod(target, source)
        while copies % 4 == 0:
            copies //= 4
        return 1 if rest or (self._is_marked and copies * source == target) else copies

    @property
    def query_factor(self) -> float:
        """What queries are multiplied with, because attention divides by the root of the head's width."""
        return math.sqrt(self.target.head_dim / self.source.shape.head_dim)

    def _residual_width(self) -> int:
        return self._copies * self.source.shape.embd

    def _all_tensors(self) -> Iterator[Tensor]:
        yield from super()._all_tensors()
        source, target = self.source.shape.head_dim, self.target.head_dim
        if target > source:
            factor = np.array([self.query_factor], np.float32)
            for layer in range(self.target.layers):
                yield Tensor(f"blk.{layer}.attn_q.scale", (1,), Type.F32, lambda: factor)
        if (copied := self.source.tensors.get("rope_freqs.weight")) is not None:
            freqs = np.ones(target // 2, np.float32)  # of the numbers that are zero, any will do
            freqs[: source // 2] = copied.data
            yield Tensor(copied.name, freqs.shape, copied.tensor_type, lambda: freqs)

    def _metadata(self) -> dict[str, tuple[Any, gguf.GGUFValueType, gguf.GGUFValueType | None]]:
        values = super()._metadata()
        if self.target.head_dim > self.source.shape.head_dim:
            values[_FREQ_BASE] = freq_base(self.source, self.target), gguf.GGUFValueType.FLOAT32, None
        return values

    def _embedding(self) -> Blocks:
        real = read_blocks(self.source.tensors["token_embd.weight"], self.kind)
        matrix = super()._embedding()
        matrix[: len(real), : self._copies * real.shape[1]] = np.tile(real, (1, self._copies, 1))
        return matrix

    def _put(self, matrix: Blocks, name: str, real: Blocks) -> None:
        source = self.source.shape
        head_dim, wide = source.head_dim, self.target.head_dim
        if name in ("attn_q", "attn_k", "attn_v"):
            heads = kv_slots(source, self.target)
            if name == "attn_q":
                heads = [(slot, head) for head, slot in enumerate(query_slots(source, self.target))]
            to, of = zip(*heads, strict=True)
            matrix[_heads(to, wide)] = 0
            matrix[_heads(to, wide, head_dim), : real.shape[1]] = real[_heads(of, head_dim)]
        elif name in ("attn_output", "ffn_down"):
            columns = np.arange(real.shape[1])
            if name == "attn_output":
                columns = _heads(query_slots(source, self.target), wide // UNIT, head_dim // UNIT)
            for copy in range(self._copies):
                matrix[copy * source.embd : (copy + 1) * source.embd, columns] = real
        else:
            super()._put(matrix, name, real)


def group(shape: Shape) -> int:
    """Query heads that share one key/value head."""
    return shape.heads // shape.kv_heads


def key_copies(source: Shape, target: Shape) -> int:
    """Into how many key/value heads of the target a head of the source is copied: several where groups are smaller."""
    return -(-group(source) // group(target))


def query_slots(source: Shape, target: Shape) -> list[int]:
    """Where each query head of the source goes, so that it reads a copy of its own key/value head."""
    slots = []
    for head in range(source.heads):
        kv_head, member = divmod(head, group(source))
        copy, place = divmod(member, group(target))
        slots.append((kv_head * key_copies(source, target) + copy) * group(target) + place)
    return slots


def kv_slots(source: Shape, target: Shape) -> list[tuple[int, int]]:
    """(key/value head of the target, head of the source that it copies), for all heads that are not noise."""
    copies = key_copies(source, target)
    return [(head * copies + copy, head) for head in range(source.kv_heads) for copy in range(copies)]


def freq_base(source: Source, target: Shape) -> float:
    """The base with which the first numbers of a wider head rotate as those of the source's heads do.

    A number of index i in heads of h rotates by base^(-i / h). It may be too large for a float32.
    """
    base = float(source.fields[_FREQ_BASE].contents()) if _FREQ_BASE in source.fields else _DEFAULT_FREQ_BASE
    return float(base ** (target.head_dim / source.shape.head_dim))


def _heads(slots: Iterable[int], size: int, n: int | None = None) -> NDArray[np.intp]:
    """Indices of the rows (or columns) of these heads, `size` to a head, or of the first `n` of each."""
    return np.concatenate([np.arange(slot * size, slot * size + (n or size)) for slot in slots])

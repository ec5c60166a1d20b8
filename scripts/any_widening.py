"""Widened models of more sizes than `specrun demo` needs: copies of the hidden state and of key/value heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from specrun.making.widening import blocks
from specrun.making.widening.blocks import UNIT, Blocks, Type
from specrun.making.widening.wider_model import Shape, Tensor, WiderModel

TYPES: dict[str, Type] = {
    name: getattr(Type, name.upper())
    for name in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "mxfp4")
}


class AnyWiderModel(WiderModel):
    """As `WiderModel`, for any number of query heads to a key/value head, and bit for bit at any multiple of the width
    (docs/widening.md).
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

    def _residual_width(self) -> int:
        return self._copies * self.source.shape.embd

    def _all_tensors(self) -> Iterator[Tensor]:
        yield from super()._all_tensors()
        if (copied := self.source.tensors.get("rope_freqs.weight")) is not None:
            yield Tensor(copied.name, tuple(copied.data.shape), copied.tensor_type, lambda: np.array(copied.data))

    def _embedding(self) -> Blocks:
        real = blocks.read(self.source.tensors["token_embd.weight"], self.kind)
        matrix = super()._embedding()
        matrix[: len(real), : self._copies * real.shape[1]] = np.tile(real, (1, self._copies, 1))
        return matrix

    def _place(self, matrix: Blocks, full_name: str) -> None:
        source, head_dim, name = self.source.shape, self.source.shape.head_dim, full_name.split(".")[2]
        real = blocks.read(self.source.tensors[full_name], self.kind)
        if name == "attn_q":
            matrix[_heads(query_slots(source, self.target), head_dim), : real.shape[1]] = real
        elif name in ("attn_k", "attn_v"):
            to, of = zip(*kv_slots(source, self.target), strict=True)
            matrix[_heads(to, head_dim), : real.shape[1]] = real[_heads(of, head_dim)]
        elif name in ("attn_output", "ffn_down"):
            columns = np.arange(real.shape[1])
            if name == "attn_output":
                columns = _heads(query_slots(source, self.target), head_dim // UNIT)
            for copy in range(self._copies):
                matrix[copy * source.embd : (copy + 1) * source.embd, columns] = real
        else:
            super()._place(matrix, full_name)


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


def _heads(slots: Iterable[int], size: int) -> NDArray[np.intp]:
    """Indices of the rows (or columns) of these heads, `size` to a head."""
    return np.concatenate([np.arange(slot * size, (slot + 1) * size) for slot in slots])

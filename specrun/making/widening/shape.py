"""Sizes of a llama-architecture model, and where the heads of a smaller model go in a larger one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf

UNIT = 32  # weights of a quantized block; all sizes are multiples, so that blocks move as they are
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NORMS = ("attn_norm", "ffn_norm")
EPSILON, TOKENS = "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.tokens"


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama. head_dim: width of one attention head."""

    embd: int
    layers: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Source:
    """A file that can be widened. Tensors stay on disk until they are read."""

    path: Path
    shape: Shape
    tensors: dict[str, gguf.ReaderTensor]
    fields: dict[str, gguf.ReaderField]

    @property
    def name(self) -> str:
        """`general.name`, or the file's name."""
        return str(self.fields["general.name"].contents() if "general.name" in self.fields else self.path.stem)


def read_source(path: Path) -> Source:
    """Open the GGUF file of a plain llama whose sizes are multiples of 32. Nothing is checked."""
    reader = gguf.GGUFReader(path)
    fields = dict(reader.fields)

    def size(key: str, default: int = 0) -> int:
        return int(fields[f"llama.{key}"].contents()) if f"llama.{key}" in fields else default

    heads = size("attention.head_count")
    shape = Shape(
        embd=size("embedding_length"),
        layers=size("block_count"),
        ff=size("feed_forward_length"),
        heads=heads,
        kv_heads=size("attention.head_count_kv", heads),
        head_dim=size("attention.key_length", size("embedding_length") // heads),
        vocab=len(fields[TOKENS].data),
    )
    return Source(path, shape, {tensor.name: tensor for tensor in reader.tensors}, fields)


def key_copies(source: Shape, target: Shape) -> int:
    """Into how many key/value heads of the target a head of the source is copied: several where groups are smaller."""
    return -(-source.group // target.group)


def query_slots(source: Shape, target: Shape) -> list[int]:
    """Where each query head of the source goes, so that it reads a copy of its own key/value head."""
    slots = []
    for head in range(source.heads):
        kv_head, member = divmod(head, source.group)
        copy, place = divmod(member, target.group)
        slots.append((kv_head * key_copies(source, target) + copy) * target.group + place)
    return slots


def kv_slots(source: Shape, target: Shape) -> list[tuple[int, int]]:
    """(key/value head of the target, head of the source that it copies), for all heads that are not noise."""
    copies = key_copies(source, target)
    return [(head * copies + copy, head) for head in range(source.kv_heads) for copy in range(copies)]

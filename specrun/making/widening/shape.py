"""Sizes of a llama-architecture model, and a file that can be widened."""

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

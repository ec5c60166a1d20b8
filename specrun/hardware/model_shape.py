"""The bytes of a model's parts: what placement moves between VRAM and RAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specrun.llama_settings import LlamaSettings

if TYPE_CHECKING:
    from specrun.catalog.gguf_file import GgufFile

_FLOAT = 4
_MASK_BYTES = 6  # of one cell and token: float32 as it is filled in, float16 as flash attention reads it


@dataclass(frozen=True)
class ModelShape:
    """Sizes in bytes, by layer where they are tuples.

    layers: weights without routed experts. experts: of those. kv: cache of the whole context. embedding: stays in RAM.
    output: the output matrix and what comes with it; with a tied embedding a copy of that, in VRAM only.
    largest: largest single tensor. activations: of one token, in the widest layer and its attention.
    """

    layers: tuple[int, ...]
    experts: tuple[int, ...]
    kv: tuple[int, ...]
    embedding: int
    output: int
    is_tied: bool
    largest: int
    n_vocab: int
    activations: int

    @classmethod
    def of(cls, file: GgufFile, n_cells: int, settings: LlamaSettings) -> ModelShape:
        """Of a model whose KV cache holds `n_cells` tokens, in the types that `settings` say."""
        per_token = file.kv_bytes_per_token(settings.type_k or "f16", settings.type_v or "f16")
        return cls(
            layers=tuple(layer - expert for layer, expert in zip(file.layer_bytes, file.expert_bytes, strict=True)),
            experts=file.expert_bytes,
            kv=tuple(n_cells * size for size in per_token),
            embedding=file.embedding_bytes,
            output=file.output_bytes + file.other_bytes,
            is_tied=file.is_tied,
            largest=max((tensor.n_bytes for tensor in file.tensors), default=0),
            n_vocab=file.n_vocab,
            activations=_activations(file, n_cells, settings),
        )

    @property
    def n_units(self) -> int:
        """What `--gpu-layers` counts: the layers, and the output as one more."""
        return len(self.layers) + 1

    @property
    def is_moe(self) -> bool:
        """Whether there are routed experts."""
        return any(self.experts)

    def unit(self, index: int, n_cpu_moe: int) -> int:
        """Bytes in VRAM of layer `index` (its cache too; experts unless it is one of the first `n_cpu_moe`)."""
        if index == len(self.layers):
            return self.output
        return self.layers[index] + self.kv[index] + (self.experts[index] if index >= n_cpu_moe else 0)

    def logits(self, n_rows: int) -> int:
        """Bytes of so many rows of logits."""
        return n_rows * self.n_vocab * _FLOAT


def _activations(file: GgufFile, n_cells: int, settings: LlamaSettings) -> int:
    """Bytes that a token takes in the compute buffer, a little too many: llama.cpp shares memory between the parts.

    In a pass of 512 tokens through 8 B parameters and 4k cells this gives 140 MB; llama.cpp takes less than that.
    """
    wide = max(file.n_ff, file.n_ff_expert * file.n_experts_used)
    numbers = 4 * file.n_embd + 3 * wide
    if settings.flash_attn == "off":
        numbers += 2 * file.n_heads * n_cells  # scores of all heads, before and after the softmax
    return numbers * _FLOAT + n_cells * _MASK_BYTES

"""Small models with a target's layer shapes and any mixture of weight types, to time llama.cpp's kernels on.

Which types llama.cpp's quantizer gives to which tensor is asked of the quantizer itself, with a skeleton of
the model whose matrices have two rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import EMBEDDING, OUTPUT, layer_of
from specrun.catalog.zero_model import write_zeros
from specrun.llama.quantizer import quantize

# The matrices of a layer of a dense transformer, as llama.cpp names them.
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_BLOCK = 256  # weights of a row that K- and i-quants need a multiple of
_F16 = "F16"

Types = Mapping[str, str]
"""Type of each matrix of a model, by its name, such as `blk.0.ffn_up.weight`."""


@dataclass(frozen=True)
class Layers:
    """The layers of a dense target. file: the target's."""

    file: GgufFile

    @cached_property
    def types(self) -> dict[str, str]:
        """The types of the target's matrices."""
        return {tensor.name: tensor.type for tensor in self.file.tensors if tensor.name in self._names}

    @property
    def is_usual(self) -> bool:
        """Whether every layer has the usual matrices, no experts, and rows of whole blocks."""
        matrices = [tensor for tensor in self.file.tensors if tensor.name in self._names]
        n_expected = len(_MATRICES) * self.file.n_layers
        n_in_layers = sum(layer_of(tensor.name) is not None for tensor in matrices)
        rows_fit = all(tensor.shape[0] % _BLOCK == 0 for tensor in matrices)
        return not self.file.n_experts and n_in_layers == n_expected and rows_fit

    @cached_property
    def _names(self) -> set[str]:
        n_layers = self.file.n_layers
        return {EMBEDDING, OUTPUT, *(_name(layer, matrix) for layer in range(n_layers) for matrix in _MATRICES)}

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes, in ggml's order, of the first layer's matrices, the embedding, and the output if there is one."""
        shapes = {tensor.name: tensor.shape for tensor in self.file.tensors}
        wanted = [_name(0, matrix) for matrix in _MATRICES] + [EMBEDDING, OUTPUT]
        return {name: shapes[name] for name in wanted if name in shapes}

    def quantized(self, file_type: int, folder: Path) -> dict[str, str]:
        """The types that llama.cpp's quantizer gives the target's matrices. file_type: a llama_ftype.

        Raises LlamaError if it refuses.
        """
        skeleton, result = folder / "skeleton.gguf", folder / "quantized.gguf"
        layers = {_name(i, matrix): (_BLOCK, 2) for i in range(self.file.n_layers) for matrix in _MATRICES}
        rows = dict.fromkeys((name for name in (EMBEDDING, OUTPUT) if name in self._shapes), (_BLOCK, 2))
        write_zeros(skeleton, self._metadata(self.file.n_layers, 2), rows | layers, dict.fromkeys(rows | layers, _F16))
        quantize(str(skeleton), str(result), file_type, [], 1)
        return {tensor.name: tensor.type for tensor in GgufFile.read(result).tensors if tensor.name in self._names}

    def write(self, path: Path, types: Types, n_layers: int) -> Path:
        """Write a model of `n_layers` of these layers, with as large a share of the vocabulary.

        types: of all layers of the target. Where they differ from layer to layer, the few layers have about the same
        shares of each.
        """
        n_all = self.file.n_layers
        kinds = {m: sorted(types[_name(layer, m)] for layer in range(n_all)) for m in _MATRICES}
        n_vocab = max(self.file.n_vocab * n_layers // n_all, 2)
        shapes: dict[str, tuple[int, ...]] = {}
        own: dict[str, str] = {}
        for name in (EMBEDDING, OUTPUT):
            if name in self._shapes:
                shapes[name], own[name] = (self._shapes[name][0], n_vocab), types[name]
        for layer in range(n_layers):
            for matrix in _MATRICES:
                name = _name(layer, matrix)
                shapes[name] = self._shapes[_name(0, matrix)]
                own[name] = kinds[matrix][(2 * layer + 1) * n_all // (2 * n_layers)]
        return write_zeros(path, self._metadata(n_layers, n_vocab), shapes, own)

    def _metadata(self, n_layers: int, n_vocab: int) -> dict[str, Any]:
        shapes, heads = self._shapes, self.file.n_heads
        size = shapes[_name(0, "attn_q")][1] // heads
        return {
            "vocab_size": n_vocab,
            "context_length": 4096,
            "embedding_length": self.file.n_embd,
            "block_count": n_layers,
            "feed_forward_length": shapes[_name(0, "ffn_up")][1],
            "attention.head_count": heads,
            "attention.head_count_kv": shapes[_name(0, "attn_k")][1] // size,
            "attention.key_length": size,
            "attention.value_length": size,
            "rope.dimension_count": size,
        }


def _name(layer: int, matrix: str) -> str:
    return f"blk.{layer}.{matrix}.weight"

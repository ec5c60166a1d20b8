"""GGUF files of models whose weights are zeros, to time llama.cpp's kernels on.

Kernels take the same time whatever the weights are, and a sparse file takes no room on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specrun.catalog.gguf_header import parse_header


def write_dense(
    path: Path,
    heads: tuple[int, int, int],
    width: int,
    feed_forward: int,
    n_vocab: int,
    n_layers: int,
    types: list[str],
) -> Path:
    """Write a dense model of the architecture `llama`, without an output matrix of its own, and return its path.

    heads: how many there are, how many of K and V, and the size of each. width, feed_forward: of the layers.
    types: of the embedding and of the other matrices, in ggml's names.
    """
    n_heads, n_kv_heads, size = heads
    q, kv = n_heads * size, n_kv_heads * size
    matrices = {"token_embd.weight": (width, n_vocab)}
    layer = {
        "attn_q": (width, q), "attn_k": (width, kv), "attn_v": (width, kv), "attn_output": (q, width),
        "ffn_gate": (width, feed_forward), "ffn_up": (width, feed_forward), "ffn_down": (feed_forward, width),
    }  # fmt: skip
    for i in range(n_layers):
        matrices |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
    metadata = {
        "vocab_size": n_vocab, "context_length": 4096, "embedding_length": width, "block_count": n_layers,
        "feed_forward_length": feed_forward, "attention.head_count": n_heads, "attention.head_count_kv": n_kv_heads,
        "attention.key_length": size, "attention.value_length": size, "rope.dimension_count": size,
    }  # fmt: skip
    return write_zeros(path, metadata, matrices, dict.fromkeys(matrices, types[1]) | {"token_embd.weight": types[0]})


def write_zeros(
    path: Path, metadata: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], types: Mapping[str, str]
) -> Path:
    """Write a model of the architecture `llama` and return its path.

    metadata: values of keys below `llama.`. shapes, types: of each matrix by its name, in ggml's order and names.
    """
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("none")
    norms = ["output_norm.weight"]
    norms += [f"blk.{i}.{norm}.weight" for i in range(metadata["block_count"]) for norm in ("attn_norm", "ffn_norm")]
    every = {**shapes, **dict.fromkeys(norms, (metadata["embedding_length"],))}
    for name, shape in every.items():
        kind = gguf.GGMLQuantizationType[types.get(name, "F32")]
        n_weights, block = gguf.GGML_QUANT_SIZES[kind]
        size = int(np.prod(shape)) // n_weights * block
        writer.add_tensor_info(name, tuple(reversed(shape)), np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, parse_header(path.read_bytes(), str(path)).n_file_bytes)
    return path

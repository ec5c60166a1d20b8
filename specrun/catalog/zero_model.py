"""GGUF files of models whose weights are zeros, to time llama.cpp's kernels on.

Kernels take the same time whatever the weights are, and a sparse file takes no room on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_ALIGNMENT = 32  # bytes, of tensors in a GGUF file


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
    n_bytes = 0
    every = {**shapes, **dict.fromkeys(norms, (metadata["embedding_length"],))}
    for name, shape in every.items():
        kind = gguf.GGMLQuantizationType[types.get(name, "F32")]
        n_weights, block = gguf.GGML_QUANT_SIZES[kind]
        size = int(np.prod(shape)) // n_weights * block
        writer.add_tensor_info(name, tuple(reversed(shape)), np.dtype(np.float32), size, raw_dtype=kind)
        n_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    start = -(-path.stat().st_size // _ALIGNMENT) * _ALIGNMENT
    os.truncate(path, start + n_bytes)
    return path

"""Small models as GGUF files, for checks that run passes and for timing llama.cpp's kernels.

The files to time have weights of zeros: kernels take the same time whatever the weights are, and a sparse file takes no
room on the disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specrun.catalog.gguf_header import TensorInfo
from specrun.catalog.gguf_reader import parse_header, read_header
from specrun.llama.loaded_model import LlamaModel
from specrun.llama_settings import UNDECIDED, LlamaSettings

N_VOCAB = 64
_WIDTH, _HEAD = 256, 64  # floats of a hidden state, and of one of its heads

# The bytes of a block of 32 and of 256 weights in ggml-common.h: scales in front, then what may be anything.
_Q8_0 = np.dtype([("scale", "<f2"), ("rest", "i1", 32)])
_Q4_K = np.dtype([("scale", "<f2"), ("least", "<f2"), ("rest", "u1", 140)])


@contextmanager
def loaded(
    settings: LlamaSettings = UNDECIDED,
    kind: str = "F32",
    n_layers: int = 2,
    n_heads: int = 4,
    is_random: bool = True,
) -> Iterator[LlamaModel]:
    """Write and load a model. kind: type of its matrices, `F32`, `Q8_0` or `Q4_K`.

    is_random: whether they hold random weights; else they hold zeros, so that all K and V are zeros too.
    """
    with tempfile.TemporaryDirectory() as folder:
        # K-quants need multiples of 256: the width, and the numbers of all heads together.
        shape = (n_heads, n_heads // 2, _HEAD), _WIDTH, _WIDTH, N_VOCAB, n_layers
        path = write_dense(Path(folder) / "tiny.gguf", *shape, [kind, kind])
        if is_random:
            rng = np.random.default_rng(0)
            with path.open("r+b") as file:
                for tensor in read_header(path).tensors:
                    file.seek(tensor.offset)
                    file.write(_weights(rng, tensor).tobytes())
        with LlamaModel(path, settings) as model:
            yield model


def _weights(rng: np.random.Generator, tensor: TensorInfo) -> NDArray[np.generic]:
    if len(tensor.shape) == 1:
        return np.ones(tensor.shape, np.float32)  # a norm
    if tensor.type == "F32":
        return rng.normal(0, 0.08, tensor.n_parameters).astype(np.float32)
    kind = {"Q8_0": _Q8_0, "Q4_K": _Q4_K}[tensor.type]
    blocks = np.frombuffer(rng.bytes(tensor.n_bytes), kind).copy()
    if tensor.type == "Q8_0":
        blocks["scale"] = 0.001
    else:
        blocks["scale"], blocks["least"] = 2e-4, 15e-4  # values around 0, as scales and minima have 6 bits each
    return blocks


def embedding(tokens: list[int]) -> NDArray[np.float32]:
    """float32[len(tokens), n_embd]: the rows of the embedding with random weights in F32, which is the first tensor."""
    rows = np.random.default_rng(0).normal(0, 0.08, (N_VOCAB, _WIDTH)).astype(np.float32)
    return rows[tokens]


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

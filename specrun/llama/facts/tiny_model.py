"""Models of few layers, written and loaded in milliseconds, for checks that run passes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specrun.catalog.gguf_header import TensorInfo, read_header
from specrun.catalog.zero_model import write_dense
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
    behind: bytes = b"",
) -> Iterator[LlamaModel]:
    """Write and load a model. kind: type of its matrices, `F32`, `Q8_0` or `Q4_K`.

    is_random: whether they hold random weights; else they hold zeros, so that all K and V are zeros too.
    behind: what the file has behind the last tensor.
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
                file.seek(0, os.SEEK_END)
                file.write(behind)
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

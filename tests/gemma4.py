"""A small Gemma 4 with random weights, and an assistant for it: the tensors, metadata and shapes that llama.cpp's
converter writes of published ones, in real GGUF files.

What the layers of both add to a token's embedding is small, so that the next token depends mostly on the one before it.
The assistant's output is the target's, and so it is often right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.hybrids import ends, ones
from tests.models import Floats, Metadata, random_matrix, tokenizer, write_model

_Q8 = gguf.GGMLQuantizationType.Q8_0
_N_EMBD, _N_OWN, _N_FF = 64, 128, 128  # floats of a state of the target and of the assistant
_N_HEAD, _HEAD, _WINDOW_HEAD = 2, 64, 32  # query heads, and floats of one without a window and with one
_PATTERN = [True, False]  # which of two layers has a window


def random_gemma4(path: Path, *, window: int = 24, n_layer: int = 4, seed: int = 0) -> Path:
    """A target whose output matrix is one of its own, so that it does not repeat its last token."""
    rng = np.random.default_rng(seed)
    values = tokenizer() | _shape("gemma4", _N_EMBD, n_layer, window)
    tensors = ends(rng, values, _N_EMBD) | {"rope_freqs.weight": _rope_freqs()}
    embedding = tensors["token_embd.weight"]
    tensors["token_embd.weight"] = embedding / np.sqrt((embedding**2).mean())
    for layer in range(n_layer):
        tensors |= _layer(rng, layer, _N_EMBD)
        block, size = f"blk.{layer}", _head_size(layer)
        for name in ("attn_k", "attn_v"):
            tensors[f"{block}.{name}.weight"] = random_matrix(rng, size, _N_EMBD)
        tensors |= ones(block, size, "attn_k_norm")
    return write_model(path, "gemma4", values, tensors, _Q8)


def random_assistant(path: Path, target: Path, *, window: int = 24, metadata: Metadata | None = None) -> Path:
    """An assistant of two layers for a target of `random_gemma4`. metadata: keys set on top (None removes one)."""
    rng, n_layer = np.random.default_rng(1), 2
    reader = gguf.GGUFReader(target)
    output = next(tensor for tensor in reader.tensors if tensor.name == "output.weight")
    known = gguf.quants.dequantize(output.data, output.tensor_type).astype(np.float32)
    name = "gemma4-assistant"
    values = tokenizer() | _shape(name, _N_OWN, n_layer, window)
    values |= {f"{name}.embedding_length_out": _N_EMBD, f"{name}.nextn_predict_layers": n_layer}
    pre = 0.02 * random_matrix(rng, _N_OWN, 2 * _N_EMBD)
    pre[:_N_EMBD, :_N_EMBD] += np.eye(_N_EMBD)
    tensors = {
        "token_embd.weight": np.pad(known, ((0, 0), (0, _N_OWN - _N_EMBD))),  # is only the output
        "output_norm.weight": np.full(_N_OWN, 4, np.float32),
        "rope_freqs.weight": _rope_freqs(),
        "nextn.pre_projection.weight": pre.astype(np.float32),
        "nextn.post_projection.weight": random_matrix(rng, _N_EMBD, _N_OWN),
    }
    for layer in range(n_layer):
        tensors |= _layer(rng, layer, _N_OWN)
    return write_model(path, name, values | dict(metadata or {}), tensors, _Q8)


def _shape(name: str, n_embd: int, n_layer: int, window: int) -> dict[str, Any]:
    return {
        "general.name": f"random {name}",
        f"{name}.context_length": 512,
        f"{name}.embedding_length": n_embd,
        f"{name}.embedding_length_per_layer_input": 0,
        f"{name}.block_count": n_layer,
        f"{name}.feed_forward_length": _N_FF,
        f"{name}.attention.head_count": _N_HEAD,
        f"{name}.attention.head_count_kv": [1] * n_layer,
        f"{name}.attention.key_length": _HEAD,
        f"{name}.attention.value_length": _HEAD,
        f"{name}.attention.key_length_swa": _WINDOW_HEAD,
        f"{name}.attention.value_length_swa": _WINDOW_HEAD,
        f"{name}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{name}.attention.shared_kv_layers": 0,
        f"{name}.attention.sliding_window": window,
        f"{name}.attention.sliding_window_pattern": _PATTERN * (n_layer // 2),
        f"{name}.rope.dimension_count": _HEAD,
        f"{name}.rope.dimension_count_swa": _WINDOW_HEAD,
        f"{name}.rope.freq_base": 1e6,
        f"{name}.rope.freq_base_swa": 1e4,
    }


def _layer(rng: np.random.Generator, layer: int, n_embd: int) -> dict[str, Floats]:
    """What the layers of both have."""
    block, n_query = f"blk.{layer}", _N_HEAD * _head_size(layer)
    shapes = {
        "attn_q": (n_query, n_embd),
        "attn_output": (n_embd, n_query),
        "ffn_gate": (_N_FF, n_embd),
        "ffn_up": (_N_FF, n_embd),
        "ffn_down": (n_embd, _N_FF),
    }
    tensors = {f"{block}.{name}.weight": random_matrix(rng, *shape) for name, shape in shapes.items()}
    tensors |= ones(block, n_embd, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    return tensors | ones(block, _head_size(layer), "attn_q_norm") | ones(block, 1, "layer_output_scale")


def _head_size(layer: int) -> int:
    return _WINDOW_HEAD if _PATTERN[layer % 2] else _HEAD


def _rope_freqs() -> Floats:
    """A quarter of a head is turned; llama.cpp leaves the others as they are, as these factors are so large."""
    n = _HEAD // 2
    return np.where(np.arange(n) < n // 4, 1.0, 1e30).astype(np.float32)

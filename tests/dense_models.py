"""Small dense models with random weights of several architectures, in real GGUF files.

The matrices are Q8_0, whose kernels on a CPU give a token the same bits in passes of every size.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.models import TOKENS, random_matrix, tokenizer, write_model

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
_N_EMBD, _N_HEAD_DIM, _N_FF, _N_LAYER = 64, 32, 128, 2


def random_dense(path: Path, architecture: str, *, is_tied: bool, seed: int = 0) -> Path:
    """A model of one of ARCHITECTURES with the demo pair's tokenizer, which hardly ever ends a text by itself.

    is_tied: whether the embedding is the output matrix, too.
    """
    rng = np.random.default_rng(seed)
    shape = {
        "context_length": 512, "embedding_length": _N_EMBD, "block_count": _N_LAYER, "feed_forward_length": _N_FF,
        "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": _N_HEAD_DIM,
        "attention.value_length": _N_HEAD_DIM, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 256,
    }  # fmt: skip
    values = tokenizer() | {f"{architecture}.{key}": value for key, value in shape.items()}
    n_vocab, end = len(values[TOKENS]), values["tokenizer.ggml.eos_token_id"]
    tensors = {"output_norm.weight": np.full(_N_EMBD, 4, np.float32)}
    for name in ("token_embd.weight",) if is_tied else ("token_embd.weight", "output.weight"):
        tensors[name] = random_matrix(rng, n_vocab, _N_EMBD)
        tensors[name][end] = 0
    matrices = {
        "attn_q": (2 * _N_HEAD_DIM, _N_EMBD), "attn_k": (_N_HEAD_DIM, _N_EMBD), "attn_v": (_N_HEAD_DIM, _N_EMBD),
        "attn_output": (_N_EMBD, 2 * _N_HEAD_DIM), "ffn_gate": (_N_FF, _N_EMBD), "ffn_up": (_N_FF, _N_EMBD),
        "ffn_down": (_N_EMBD, _N_FF),
    }  # fmt: skip
    norms = {"attn_norm": _N_EMBD, "ffn_norm": _N_EMBD}
    if architecture in ("qwen3", "gemma3"):
        norms |= {"attn_q_norm": _N_HEAD_DIM, "attn_k_norm": _N_HEAD_DIM}
    if architecture == "gemma3":
        norms |= {"post_attention_norm": _N_EMBD, "post_ffw_norm": _N_EMBD}
    for block in (f"blk.{layer}" for layer in range(_N_LAYER)):
        tensors |= {f"{block}.{name}.weight": np.ones(n, np.float32) for name, n in norms.items()}
        tensors |= {f"{block}.{name}.weight": random_matrix(rng, *shape) for name, shape in matrices.items()}
        if architecture == "qwen2":
            biases = {f"{block}.{name}.bias": matrices[name][0] for name in ("attn_q", "attn_k", "attn_v")}
            tensors |= {name: rng.standard_normal(n).astype(np.float32) / 4 for name, n in biases.items()}
    return write_model(path, architecture, values, tensors, gguf.GGMLQuantizationType.Q8_0)

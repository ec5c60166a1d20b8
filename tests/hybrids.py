"""Small hybrid models with random weights: layers with recurrent states beside attention, in real GGUF files.

    random_qwen35    gated delta nets and attention (Qwen3.5): llama.cpp keeps snapshots of their states
    random_qwen35_moe  the same with mixtures of experts
    random_lfm2      short convolutions and attention (LFM2): likewise
    random_jamba     Mamba layers and attention (Jamba): llama.cpp keeps no snapshots
    noisy            a copy of any model whose weights are a little different, which drafts for it

A model with recurrent layers alone is `tests.models.random_mamba`. Each has the demo pair's tokenizer and never ends a
text by itself: the end-of-text token's logit is always 0. The matrices are Q8_0, whose kernels on a CPU give a token
the same bits in passes of every size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.models import (
    TOKENS,
    Floats,
    Metadata,
    Reader,
    metadata_of,
    random_mamba,
    random_matrix,
    tokenizer,
    write_model,
)

_Q8 = gguf.GGMLQuantizationType.Q8_0
KINDS = ("qwen35", "lfm2", "jamba", "mamba")
WITH_SNAPSHOTS = ("qwen35", "lfm2")


def random_recurrent(path: Path, kind: str, seed: int = 0) -> Path:
    """A small model of one of `KINDS`."""
    if kind == "mamba":
        return random_mamba(path, n_layer=2, seed=seed, weight_type=_Q8)
    make = {"qwen35": random_qwen35, "lfm2": random_lfm2, "jamba": random_jamba}[kind]
    return make(path, seed=seed)


def random_qwen35(
    path: Path,
    *,
    n_embd: int = 64,
    n_layer: int = 4,
    n_silent: int = 0,
    seed: int = 0,
    float_gates: bool = False,
    metadata: Metadata | None = None,
) -> Path:
    """Every second layer is attention, and the others are gated delta nets.

    n_silent: further layers that add nothing: all their matrices are 0.
    float_gates: the small matrices of the gates stay in F32, as some quantizers leave them. A state then gets other
    last bits in passes of one token, which logits show much later.
    """
    values, tensors = qwen35_parts(np.random.default_rng(seed), n_embd=n_embd, n_layer=n_layer, n_silent=n_silent)
    plain = ("conv1d", "ssm_alpha", "ssm_beta") if float_gates else ("conv1d",)
    return write_model(path, "qwen35", values | dict(metadata or {}), tensors, _Q8, plain)


def qwen35_parts(
    rng: np.random.Generator, *, n_embd: int, n_layer: int, n_silent: int = 0
) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Metadata and tensors of `random_qwen35`."""
    n_ff, n_head_dim, n_head, interval = 2 * n_embd, 32, n_embd // 32, 2
    n_state, n_key_heads, n_value_heads, n_conv = 32, n_embd // 64, n_embd // 32, 4
    n_key, n_inner = n_state * n_key_heads, n_state * n_value_heads
    values = tokenizer() | {
        "general.name": "random qwen35",
        "qwen35.context_length": 512,
        "qwen35.embedding_length": n_embd,
        "qwen35.block_count": n_layer + n_silent,
        "qwen35.feed_forward_length": n_ff,
        "qwen35.attention.head_count": n_head,
        "qwen35.attention.head_count_kv": 1,
        "qwen35.attention.key_length": n_head_dim,
        "qwen35.attention.value_length": n_head_dim,
        "qwen35.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen35.rope.dimension_count": n_head_dim,
        "qwen35.rope.dimension_sections": [6, 5, 5, 0],
        "qwen35.ssm.conv_kernel": n_conv,
        "qwen35.ssm.inner_size": n_inner,
        "qwen35.ssm.state_size": n_state,
        "qwen35.ssm.time_step_rank": n_value_heads,
        "qwen35.ssm.group_count": n_key_heads,
        "qwen35.full_attention_interval": interval,
    }
    tensors = ends(rng, values, n_embd)
    for layer in range(n_layer + n_silent):
        block = f"blk.{layer}"
        if (layer + 1) % interval == 0:  # attn_q has the query and its gate
            shapes = {
                "attn_q": (2 * n_head * n_head_dim, n_embd),
                "attn_k": (n_head_dim, n_embd),
                "attn_v": (n_head_dim, n_embd),
                "attn_output": (n_embd, n_head * n_head_dim),
            }
            tensors |= ones(block, n_head_dim, "attn_q_norm", "attn_k_norm")
        else:
            shapes = {
                "attn_qkv": (2 * n_key + n_inner, n_embd),
                "attn_gate": (n_inner, n_embd),
                "ssm_out": (n_embd, n_inner),
                "ssm_beta": (n_value_heads, n_embd),
                "ssm_alpha": (n_value_heads, n_embd),
            }
            tensors |= ones(block, n_state, "ssm_norm") | {
                f"{block}.ssm_conv1d.weight": _vectors(rng, 2 * n_key + n_inner, n_conv),
                f"{block}.ssm_dt.bias": rng.standard_normal(n_value_heads).astype(np.float32),
                f"{block}.ssm_a": -np.exp(rng.standard_normal(n_value_heads) - 2).astype(np.float32),
            }
        shapes |= _feed_forward(n_embd, n_ff)
        if layer < n_layer:
            tensors |= _matrices(rng, block, shapes)
        else:
            tensors |= {f"{block}.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
        tensors |= ones(block, n_embd, "attn_norm", "post_attention_norm")
    return values, tensors


def random_qwen35_moe(path: Path, *, n_expert: int = 4, seed: int = 0) -> Path:
    """`random_qwen35` with experts, of which a token uses two, and one that all tokens use."""
    rng, n_embd = np.random.default_rng(seed), 64
    parts, dense = qwen35_parts(rng, n_embd=n_embd, n_layer=4)
    values = {key.replace("qwen35.", "qwen35moe."): value for key, value in parts.items()}
    n_ff = values.pop("qwen35moe.feed_forward_length")
    values |= {
        "qwen35moe.expert_count": n_expert,
        "qwen35moe.expert_used_count": 2,
        "qwen35moe.expert_feed_forward_length": n_ff,
        "qwen35moe.expert_shared_feed_forward_length": n_ff,
    }
    tensors = {name: tensor for name, tensor in dense.items() if ".ffn_" not in name}
    for layer in range(values["qwen35moe.block_count"]):
        block = f"blk.{layer}"
        for name, shape in _feed_forward(n_embd, n_ff).items():
            tensors[f"{block}.{name}_shexp.weight"] = dense[f"{block}.{name}.weight"]
            experts = [random_matrix(rng, *shape) for _ in range(n_expert)]
            tensors[f"{block}.{name}_exps.weight"] = np.stack(experts)
        tensors[f"{block}.ffn_gate_inp.weight"] = random_matrix(rng, n_expert, n_embd)
        tensors[f"{block}.ffn_gate_inp_shexp.weight"] = np.zeros(n_embd, np.float32)
    return write_model(path, "qwen35moe", values, tensors, _Q8, ("conv1d", "ffn_gate_inp"))


def random_lfm2(path: Path, *, seed: int = 0, metadata: Metadata | None = None) -> Path:
    """Four layers: the second and the last are attention, the others short convolutions."""
    rng = np.random.default_rng(seed)
    n_embd, n_ff, n_head, n_conv = 64, 128, 2, 3
    n_head_dim = n_embd // n_head
    kv_heads = [0, 1, 0, 1]
    values = tokenizer() | {
        "general.name": "random lfm2",
        "lfm2.context_length": 512,
        "lfm2.embedding_length": n_embd,
        "lfm2.block_count": len(kv_heads),
        "lfm2.feed_forward_length": n_ff,
        "lfm2.attention.head_count": n_head,
        "lfm2.attention.head_count_kv": kv_heads,
        "lfm2.attention.layer_norm_rms_epsilon": 1e-5,
        "lfm2.shortconv.l_cache": n_conv,
    }
    tensors = ends(rng, values, n_embd)
    tensors["token_embd_norm.weight"] = tensors.pop("output_norm.weight")
    for layer, n_kv_heads in enumerate(kv_heads):
        block = f"blk.{layer}"
        if n_kv_heads:
            shapes = {
                "attn_q": (n_embd, n_embd),
                "attn_k": (n_head_dim, n_embd),
                "attn_v": (n_head_dim, n_embd),
                "attn_output": (n_embd, n_embd),
            }
            tensors |= ones(block, n_head_dim, "attn_q_norm", "attn_k_norm")
        else:
            shapes = {"shortconv.in_proj": (3 * n_embd, n_embd), "shortconv.out_proj": (n_embd, n_embd)}
            tensors[f"{block}.shortconv.conv.weight"] = _vectors(rng, n_embd, n_conv)
        tensors |= _matrices(rng, block, shapes | _feed_forward(n_embd, n_ff))
        tensors |= ones(block, n_embd, "attn_norm", "ffn_norm")
    return write_model(path, "lfm2", values | dict(metadata or {}), tensors, _Q8, plain=("shortconv.conv",))


def random_jamba(path: Path, *, seed: int = 0, metadata: Metadata | None = None) -> Path:
    """Four layers: the second and the last are attention, the others Mamba layers."""
    rng = np.random.default_rng(seed)
    n_embd, n_ff, n_head, n_inner, n_state, n_conv, n_rank = 64, 128, 2, 128, 16, 4, 32
    kv_heads = [0, 1, 0, 1]
    values = tokenizer() | {
        "general.name": "random jamba",
        "jamba.context_length": 512,
        "jamba.embedding_length": n_embd,
        "jamba.block_count": len(kv_heads),
        "jamba.feed_forward_length": n_ff,
        "jamba.attention.head_count": n_head,
        "jamba.attention.head_count_kv": kv_heads,
        "jamba.attention.layer_norm_rms_epsilon": 1e-6,
        "jamba.ssm.conv_kernel": n_conv,
        "jamba.ssm.inner_size": n_inner,
        "jamba.ssm.state_size": n_state,
        "jamba.ssm.time_step_rank": n_rank,
    }
    tensors = ends(rng, values, n_embd)
    for layer, n_kv_heads in enumerate(kv_heads):
        block = f"blk.{layer}"
        if n_kv_heads:
            shapes = {
                "attn_q": (n_embd, n_embd),
                "attn_k": (n_embd // n_head, n_embd),
                "attn_v": (n_embd // n_head, n_embd),
                "attn_output": (n_embd, n_embd),
            }
        else:
            shapes = {
                "ssm_in": (2 * n_inner, n_embd),
                "ssm_x": (n_rank + 2 * n_state, n_inner),
                "ssm_dt": (n_inner, n_rank),
                "ssm_out": (n_embd, n_inner),
            }
            tensors |= ones(block, n_rank, "ssm_dt_norm") | ones(block, n_state, "ssm_b_norm", "ssm_c_norm")
            tensors |= {
                f"{block}.ssm_conv1d.weight": _vectors(rng, n_inner, n_conv),
                f"{block}.ssm_conv1d.bias": np.zeros(n_inner, np.float32),
                f"{block}.ssm_dt.bias": np.zeros(n_inner, np.float32),
                f"{block}.ssm_a": -np.ones((n_inner, n_state), np.float32),
                f"{block}.ssm_d": np.ones(n_inner, np.float32),
            }
        tensors |= _matrices(rng, block, shapes | _feed_forward(n_embd, n_ff))
        tensors |= ones(block, n_embd, "attn_norm", "ffn_norm")
    return write_model(path, "jamba", values | dict(metadata or {}), tensors, _Q8, plain=("conv1d", "ssm_a"))


def noisy(path: Path, source: Path, noise: float = 0.02, seed: int = 9) -> Path:
    """A copy of `source` with matrices that differ by `noise` of their own size: it often writes the same."""
    reader = Reader(source)
    rng = np.random.default_rng(seed)
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim > 1:
            values += noise * values.std() * rng.standard_normal(values.shape).astype(np.float32)
        tensors[tensor.name] = values
    plain = [one.name for one in reader.tensors if one.tensor_type != _Q8 and tensors[one.name].ndim > 1]
    values = metadata_of(reader)
    return write_model(path, values.pop("general.architecture"), values, tensors, _Q8, plain=plain)


# --- parts ---------------------------------------------------------------------------------------------------------


def ends(rng: np.random.Generator, values: Metadata, n_embd: int) -> dict[str, Floats]:
    """Embedding and output."""
    n_vocab = len(values[TOKENS])
    output = random_matrix(rng, n_vocab, n_embd)
    output[values["tokenizer.ggml.eos_token_id"]] = 0
    return {
        "token_embd.weight": random_matrix(rng, n_vocab, n_embd),
        "output_norm.weight": np.full(n_embd, 4, np.float32),
        "output.weight": output,
    }


def _feed_forward(n_embd: int, n_ff: int) -> dict[str, tuple[int, int]]:
    return {"ffn_gate": (n_ff, n_embd), "ffn_up": (n_ff, n_embd), "ffn_down": (n_embd, n_ff)}


def _matrices(rng: np.random.Generator, block: str, shapes: dict[str, tuple[int, int]]) -> dict[str, Floats]:
    return {f"{block}.{name}.weight": random_matrix(rng, *shape) for name, shape in shapes.items()}


def _vectors(rng: np.random.Generator, count: int, length: int) -> Floats:
    """Weights of a convolution over a few tokens, which is no matrix product."""
    return (rng.standard_normal((count, length)) / 2).astype(np.float32)


def ones(block: str, n: int, *names: str) -> dict[str, Floats]:
    return {f"{block}.{name}.weight": np.ones(n, np.float32) for name in names}

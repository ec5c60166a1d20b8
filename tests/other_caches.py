"""Small mixtures with random weights whose attention is cached in another way than a llama's, in real GGUF files.

    random_gpt_oss     every second layer sees a window of tokens; attention has sinks (gpt-oss)
    random_deepseek2   multi-head latent attention: one cache holds K and V (DeepSeek V2 and V3)

`tests.models.random_gemma3` has sliding windows without a mixture. The matrices are Q8_0, whose kernels on a CPU give a
token the same bits in passes of every size.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.models import TOKENS, Floats, Metadata, random_matrix, tokenizer, write_model

_Q8 = gguf.GGMLQuantizationType.Q8_0
_N_EMBD, _N_FF, _N_EXPERT = 64, 64, 4


def random_gpt_oss(path: Path, *, window: int = 24, seed: int = 0) -> Path:
    """Four layers of four experts, of which a token uses two."""
    rng = np.random.default_rng(seed)
    n_head, n_head_dim, n_layer = 2, 32, 4
    values = tokenizer() | {
        "general.name": "random gpt-oss",
        "gpt-oss.context_length": 512,
        "gpt-oss.embedding_length": _N_EMBD,
        "gpt-oss.block_count": n_layer,
        "gpt-oss.feed_forward_length": _N_FF,
        "gpt-oss.expert_feed_forward_length": _N_FF,
        "gpt-oss.expert_count": _N_EXPERT,
        "gpt-oss.expert_used_count": 2,
        "gpt-oss.attention.head_count": n_head,
        "gpt-oss.attention.head_count_kv": 1,
        "gpt-oss.attention.key_length": n_head_dim,
        "gpt-oss.attention.value_length": n_head_dim,
        "gpt-oss.attention.sliding_window": window,
        "gpt-oss.attention.layer_norm_rms_epsilon": 1e-5,
        "gpt-oss.rope.dimension_count": n_head_dim,
    }
    tensors = _ends(rng, values)
    for layer in range(n_layer):
        block = f"blk.{layer}"
        tensors |= {f"{block}.{name}.weight": _ones(_N_EMBD) for name in ("attn_norm", "post_attention_norm")}
        n_query = n_head * n_head_dim
        for name, n_out in (("attn_q", n_query), ("attn_k", n_head_dim), ("attn_v", n_head_dim)):
            tensors[f"{block}.{name}.weight"] = random_matrix(rng, n_out, _N_EMBD)
            tensors[f"{block}.{name}.bias"] = _bias(rng, n_out)
        tensors[f"{block}.attn_output.weight"] = random_matrix(rng, _N_EMBD, n_query)
        tensors[f"{block}.attn_output.bias"] = _bias(rng, _N_EMBD)
        tensors[f"{block}.attn_sinks.weight"] = _bias(rng, n_head)
        tensors |= _experts(rng, block)
        tensors[f"{block}.ffn_gate_inp.bias"] = _bias(rng, _N_EXPERT)
        for name in ("gate", "up", "down"):
            tensors[f"{block}.ffn_{name}_exps.bias"] = _bias(rng, _N_EXPERT, _N_FF)
    return write_model(path, "gpt-oss", values, tensors, _Q8, plain=("bias",))


def random_deepseek2(path: Path, *, seed: int = 0) -> Path:
    """A dense layer, and two of four experts and a shared one."""
    rng = np.random.default_rng(seed)
    n_head, n_lora, n_rope, n_nope, n_value, n_layer = 2, 32, 32, 32, 32, 3
    values = tokenizer() | {
        "general.name": "random deepseek2",
        "deepseek2.context_length": 512,
        "deepseek2.embedding_length": _N_EMBD,
        "deepseek2.block_count": n_layer,
        "deepseek2.feed_forward_length": _N_FF,
        "deepseek2.expert_feed_forward_length": _N_FF,
        "deepseek2.leading_dense_block_count": 1,
        "deepseek2.expert_count": _N_EXPERT,
        "deepseek2.expert_used_count": 2,
        "deepseek2.expert_shared_count": 1,
        "deepseek2.expert_weights_scale": 1.0,
        "deepseek2.expert_gating_func": 2,
        "deepseek2.attention.head_count": n_head,
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.q_lora_rank": n_lora,
        "deepseek2.attention.kv_lora_rank": n_lora,
        "deepseek2.attention.key_length": n_lora + n_rope,
        "deepseek2.attention.value_length": n_lora,
        "deepseek2.attention.key_length_mla": n_nope + n_rope,
        "deepseek2.attention.value_length_mla": n_value,
        "deepseek2.attention.layer_norm_rms_epsilon": 1e-6,
        "deepseek2.rope.dimension_count": n_rope,
    }
    tensors = _ends(rng, values)
    for layer in range(n_layer):
        block = f"blk.{layer}"
        tensors |= {f"{block}.{name}.weight": _ones(_N_EMBD) for name in ("attn_norm", "ffn_norm")}
        tensors |= {f"{block}.{name}.weight": _ones(n_lora) for name in ("attn_q_a_norm", "attn_kv_a_norm")}
        shapes = {
            "attn_q_a": (n_lora, _N_EMBD),
            "attn_q_b": (n_head * (n_nope + n_rope), n_lora),
            "attn_kv_a_mqa": (n_lora + n_rope, _N_EMBD),
            "attn_output": (_N_EMBD, n_head * n_value),
        }
        ends = ("gate", "up", "down")
        shapes |= {f"ffn_{name}_shexp" if layer else f"ffn_{name}": (_N_FF, _N_EMBD) for name in ends}
        tensors |= {f"{block}.{name}.weight": random_matrix(rng, *shape) for name, shape in shapes.items()}
        for name, n_out, n_in in (("attn_k_b", n_lora, n_nope), ("attn_v_b", n_value, n_lora)):
            tensors[f"{block}.{name}.weight"] = np.stack([random_matrix(rng, n_out, n_in) for _ in range(n_head)])
        if layer:
            tensors |= _experts(rng, block)
    return write_model(path, "deepseek2", values, tensors, _Q8)


# --- parts ---------------------------------------------------------------------------------------------------------


def _ends(rng: np.random.Generator, values: Metadata) -> dict[str, Floats]:
    n_vocab = len(values[TOKENS])
    output = random_matrix(rng, n_vocab, _N_EMBD)
    output[values["tokenizer.ggml.eos_token_id"]] = 0
    return {
        "token_embd.weight": random_matrix(rng, n_vocab, _N_EMBD),
        "output_norm.weight": np.full(_N_EMBD, 4, np.float32),
        "output.weight": output,
    }


def _experts(rng: np.random.Generator, block: str) -> dict[str, Floats]:
    experts = {
        f"{block}.ffn_{name}_exps.weight": np.stack([random_matrix(rng, _N_FF, _N_EMBD) for _ in range(_N_EXPERT)])
        for name in ("gate", "up", "down")  # as wide as the model, so that all three have one shape
    }
    return experts | {f"{block}.ffn_gate_inp.weight": random_matrix(rng, _N_EXPERT, _N_EMBD)}


def _ones(n: int) -> Floats:
    return np.ones(n, np.float32)


def _bias(rng: np.random.Generator, *shape: int) -> Floats:
    return (rng.standard_normal(shape) / 4).astype(np.float32)

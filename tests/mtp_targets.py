"""Small targets with MTP layers (llama.cpp also calls them nextn): layers that draft from the target's hidden states.

    random_mtp_qwen35     a hybrid: a gated delta net, attention, and one MTP layer (Qwen3.5)
    random_mtp_step35     attention and dense feed-forward parts; one or more MTP layers, one for each level (Step 3.5)
    random_mtp_glm4_moe   a mixture of experts with one MTP layer, which is a mixture too (GLM 4.5)
    head_alone            the MTP layers of such a file in a file of their own, with the target's embedding and output
    trunk_alone           the target without them
    quiet                 a copy of any model with random weights, which other heads draft well for

Drafts are right about half of the time, at every level: what a layer adds to its input is made small (`QUIET`), so that
the next token depends mostly on the token before it, and the MTP layers begin with that token's embedding. No file
ends a text by itself, and the matrices are Q8_0, as in `tests.hybrids`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.hybrids import ends, ones, qwen35_parts
from tests.models import Floats, Metadata, Reader, metadata_of, random_matrix, tokenizer, write_model, write_tensors

QUIET = 0.2
_Q8 = gguf.GGMLQuantizationType.Q8_0
# What a layer adds to its input comes out of these matrices.
_WRITERS = ("attn_output", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp")
# Convolutions and the routers of mixtures are no matrices in Q8_0.
_PLAIN = ("conv1d", "ffn_gate_inp")


def random_mtp_qwen35(path: Path, *, seed: int = 0) -> Path:
    """A Qwen3.5 with a recurrent layer, an attention layer and an MTP layer."""
    rng = np.random.default_rng(seed)
    values, tensors = qwen35_parts(rng, n_embd=64, n_layer=2)
    return _with_heads(path, "qwen35", rng, values, tensors, n_layer=2, n_heads=1)


def random_mtp_step35(path: Path, *, n_heads: int = 1, seed: int = 0) -> Path:
    """A Step 3.5 of two dense layers. The first one's attention has a window, as wide as the context.

    n_heads: MTP layers. llama.cpp drafts so many levels at most, the first of them with the first layer, and so on.
    """
    rng, n_embd, n_ff, n_layer = np.random.default_rng(seed), 64, 128, 2
    values = (
        tokenizer()
        | _shape("step35", n_embd, n_ff, n_layer)
        | {
            "step35.expert_feed_forward_length": n_ff,
            "step35.attention.sliding_window": 512,
            "step35.attention.sliding_window_pattern": [True] + [False] * (n_layer + n_heads - 1),
            "step35.rope.dimension_count": n_embd // 2,
        }
    )
    tensors = ends(rng, values, n_embd)
    for layer in range(n_layer):
        block = f"blk.{layer}"
        tensors |= _attention(rng, block, n_embd) | ones(block, n_embd, "attn_norm", "ffn_norm")
        tensors |= _feed_forward(rng, block, n_embd, n_ff)
    return _with_heads(path, "step35", rng, values, tensors, n_layer=n_layer, n_heads=n_heads)


def random_mtp_glm4_moe(path: Path, *, seed: int = 0) -> Path:
    """A GLM 4.5 of a dense layer and a mixture: of four experts a token uses two, and one that all tokens use."""
    rng, n_embd, n_ff, n_layer, n_expert = np.random.default_rng(seed), 64, 64, 2, 4
    values = (
        tokenizer()
        | _shape("glm4moe", n_embd, n_ff, n_layer)
        | {
            "glm4moe.expert_count": n_expert,
            "glm4moe.expert_used_count": 2,
            "glm4moe.expert_shared_count": 1,
            "glm4moe.expert_feed_forward_length": n_ff,
            "glm4moe.leading_dense_block_count": 1,
            "glm4moe.expert_weights_norm": True,
            "glm4moe.rope.dimension_count": n_embd // 4,
        }
    )
    tensors = ends(rng, values, n_embd)
    for layer in range(n_layer):
        block = f"blk.{layer}"
        tensors |= _attention(rng, block, n_embd) | ones(block, n_embd, "attn_norm", "post_attention_norm")
        if layer == 0:
            tensors |= _feed_forward(rng, block, n_embd, n_ff)
            continue
        tensors |= _feed_forward(rng, block, n_embd, n_ff, "_shexp")
        experts = [_feed_forward(rng, block, n_embd, n_ff, "_exps") for _ in range(n_expert)]
        tensors |= {name: np.stack([expert[name] for expert in experts]) for name in experts[0]}
        tensors[f"{block}.ffn_gate_inp.weight"] = random_matrix(rng, n_expert, n_embd)
        tensors[f"{block}.exp_probs_b.bias"] = np.zeros(n_expert, np.float32)
    return _with_heads(path, "glm4moe", rng, values, tensors, n_layer=n_layer, n_heads=1)


def head_alone(path: Path, source: Path) -> Path:
    """The MTP layers of `source`, which is loaded beside the target."""
    first, _ = _head_layers(source)
    return _part(path, source, {}, lambda layer: layer >= first)


def trunk_alone(path: Path, source: Path) -> Path:
    """`source` without its MTP layers, as a file that was converted without them."""
    first, architecture = _head_layers(source)
    changes = {f"{architecture}.nextn_predict_layers": None, f"{architecture}.block_count": first}
    pattern = f"{architecture}.attention.sliding_window_pattern"
    values = metadata_of(Reader(source))
    if pattern in values:
        changes[pattern] = values[pattern][:first]
    return _part(path, source, changes, lambda layer: layer < first)


def quiet(path: Path, source: Path) -> Path:
    """A copy of `source` whose next token depends mostly on the token before it, as that of the targets here."""
    reader = Reader(source)
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    make_quiet(tensors)
    values = metadata_of(reader)
    return write_model(path, values.pop("general.architecture"), values, tensors, _Q8, _PLAIN)


def make_quiet(tensors: dict[str, Floats]) -> None:
    """Scale the weights of a random model so that its layers add little to the embedding."""
    embedding = tensors["token_embd.weight"]
    tensors["token_embd.weight"] = embedding / np.sqrt((embedding**2).mean())
    for name in tensors:
        if name.split(".")[-2] in _WRITERS:
            tensors[name] = QUIET * tensors[name]


# --- parts ---------------------------------------------------------------------------------------------------------


def _with_heads(
    path: Path,
    architecture: str,
    rng: np.random.Generator,
    values: dict[str, Any],
    tensors: dict[str, Floats],
    *,
    n_layer: int,
    n_heads: int,
) -> Path:
    """Write a target whose MTP layers have the matrices of its last layer, with other weights."""
    n_embd = values[f"{architecture}.embedding_length"]
    last = f"blk.{n_layer - 1}."
    for layer in range(n_layer, n_layer + n_heads):
        block = f"blk.{layer}"
        for name, like in list(tensors.items()):
            if name.startswith(last):
                random = like if like.ndim == 1 else rng.permuted(like.ravel()).reshape(like.shape)
                tensors[name.replace(last, f"{block}.")] = random
        through = np.concatenate([np.eye(n_embd), np.zeros((n_embd, n_embd))], axis=1)
        tensors[f"{block}.nextn.eh_proj.weight"] = (through + QUIET * random_matrix(rng, n_embd, 2 * n_embd)).astype(
            np.float32
        )
        tensors |= ones(block, n_embd, "nextn.enorm", "nextn.hnorm")
    make_quiet(tensors)
    values |= {f"{architecture}.nextn_predict_layers": n_heads, f"{architecture}.block_count": n_layer + n_heads}
    return write_model(path, architecture, values, tensors, _Q8, _PLAIN)


def _head_layers(source: Path) -> tuple[int, str]:
    """Index of the first MTP layer, and the architecture."""
    values = metadata_of(Reader(source))
    architecture = values["general.architecture"]
    return values[f"{architecture}.block_count"] - values[f"{architecture}.nextn_predict_layers"], architecture


def _part(path: Path, source: Path, changes: Metadata, kept: Callable[[int], bool]) -> Path:
    """The layers of `source` that are kept, with embedding and output."""
    reader = Reader(source)
    return write_tensors(
        path,
        metadata_of(reader) | dict(changes),
        [t for t in reader.tensors if not t.name.startswith("blk.") or kept(int(t.name.split(".")[1]))],
    )


def _shape(architecture: str, n_embd: int, n_ff: int, n_layer: int) -> dict[str, Any]:
    return {
        "general.name": f"random {architecture}",
        f"{architecture}.context_length": 512,
        f"{architecture}.embedding_length": n_embd,
        f"{architecture}.block_count": n_layer,
        f"{architecture}.feed_forward_length": n_ff,
        f"{architecture}.attention.head_count": 2,
        f"{architecture}.attention.head_count_kv": 1,
        f"{architecture}.attention.key_length": n_embd // 2,
        f"{architecture}.attention.value_length": n_embd // 2,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-6,
    }


def _attention(rng: np.random.Generator, block: str, n_embd: int) -> dict[str, Floats]:
    """Two query heads and one of keys and values."""
    widths = {"attn_q": n_embd, "attn_k": n_embd // 2, "attn_v": n_embd // 2, "attn_output": n_embd}
    return {f"{block}.{name}.weight": random_matrix(rng, n_out, n_embd) for name, n_out in widths.items()}


def _feed_forward(rng: np.random.Generator, block: str, n_embd: int, n_ff: int, kind: str = "") -> dict[str, Floats]:
    shapes = {"gate": (n_ff, n_embd), "up": (n_ff, n_embd), "down": (n_embd, n_ff)}
    return {f"{block}.ffn_{name}{kind}.weight": random_matrix(rng, *shape) for name, shape in shapes.items()}

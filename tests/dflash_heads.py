"""Small DFlash heads: from the target's hidden states, one pass drafts a whole block of tokens. Made in milliseconds.

random_dflash   a head for any target of this project, with random weights: its drafts are wrong
random_dspark   the same with DSpark's Markov part, which adds to each row's logits what its own greedy token before
                suggests: its drafts are often right for a target of `tests.mtp_targets.quiet`
dflash2_pair    a target that writes few tokens, and a DFlash 2 head, whose selector draws its drafts from them
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specrun.catalog import embedded
from tests.models import TOKENS, Floats, Reader, metadata_of, random_llama, random_matrix, write_model
from tests.mtp_targets import make_quiet

_F32, _Q8 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0
_HEAD_DIM = 32
SECTIONS = {"dflash.rope.dimension_sections": [_HEAD_DIM // 2, 0, 0, 0]}
FEW = [40, 41, 42, 43, 44, 45, 46]  # tokens of `dflash2_pair`


def random_dflash(
    path: Path,
    target: Path = embedded.TARGET,
    *,
    layers: Sequence[int] | None = None,
    block_size: int = 8,
    n_draft_vocab: int | None = None,
    has_sections: bool = False,
    seed: int = 0,
) -> Path:
    """A head of two layers for `target`, whose token embedding and, with a full vocabulary, output it uses.

    layers: those whose inputs it reads; the second and the last one by default. block_size: rows of a block, of which
    the first is the root and the others are drafts. n_draft_vocab: tokens that it can draft; None is all of them.
    has_sections: whether it turns positions as llama.cpp's converter has it for targets with M-RoPE.
    """
    values, tensors = _parts(target, layers, block_size, n_draft_vocab, np.random.default_rng(seed))
    return write_model(path, "dflash", values | (SECTIONS if has_sections else {}), tensors, _F32)


def random_dspark(
    path: Path,
    target: Path = embedded.TARGET,
    *,
    block_size: int = 7,
    n_draft_vocab: int | None = None,
    suggests: bool = True,
    has_sections: bool = False,
    weight_type: gguf.GGMLQuantizationType = _F32,
    seed: int = 0,
) -> Path:
    """A DSpark head of two layers for `target`: the row of the root is a draft too.

    Its Markov part is the target's embedding and output, as if there were no layers between them. suggests: whether it
    says anything.
    """
    values, tensors = _parts(target, None, block_size, n_draft_vocab, np.random.default_rng(seed))
    reader = Reader(target)
    matrices = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    embedding = matrices["token_embd.weight"]
    output = matrices.get("output.weight", embedding)
    size = np.sqrt((embedding**2).mean(axis=1, keepdims=True)) + 1e-6
    tensors["markov_w1.weight"] = embedding / size
    after = (output * matrices["output_norm.weight"] * suggests).astype(np.float32)
    tensors["markov_w2.weight"] = after if n_draft_vocab is None else after[tensors["d2t"]]
    tensors["output_norm.weight"] *= np.float32(0.01)  # what the layers say counts for little
    return write_model(path, "dflash", values | (SECTIONS if has_sections else {}), tensors, weight_type)


def dflash2_pair(folder: Path, *, block_size: int = 8, seed: int = 0) -> tuple[Path, Path]:
    """A target that writes the tokens `FEW` alone, each mostly by the token before it, and a head that can draft these.

    All of them are candidates of each row, which has little to say of them. The selector's two codebooks are the
    target's embedding and output, as if there were no layers between them, and its gate is near 1.
    """
    reader = Reader(random_llama(folder / "plain.gguf", n_layer=4, weight_type=_F32))
    weights = {tensor.name: tensor.data.copy() for tensor in reader.tensors}
    make_quiet(weights)
    output = weights["output.weight"]
    output[[token for token in range(len(output)) if token not in FEW]] = 0
    target_values = metadata_of(reader)
    architecture = target_values.pop("general.architecture")
    target = write_model(folder / "few.gguf", architecture, target_values, weights, _Q8)
    rng = np.random.default_rng(seed)
    values, tensors = _parts(target, None, block_size, len(FEW), rng)
    embedding, n = weights["token_embd.weight"], output.shape[1]
    size = np.sqrt((embedding**2).mean(axis=1, keepdims=True)) + 1e-6
    masked = (embedding / size)[values["tokenizer.ggml.mask_token_id"]] * tensors["output_norm.weight"]
    tensors |= {
        "output.weight": 0.01 * tensors["output.weight"],
        "d2t": np.array(FEW, np.int64),
        "selector_predecessor.weight": (embedding / size).astype(np.float32),
        "selector_successor.weight": output * weights["output_norm.weight"],
        "selector_hidden.weight": np.outer(np.ones(n), masked / (masked @ masked)).astype(np.float32),
    }
    kernel, group = 3, 16
    for layer in range(values["dflash.block_count"]):
        for place in ("attn", "ffn"):
            base = 0.1 * rng.standard_normal((2, kernel, n)).astype(np.float32)
            base[:, 0] += 1
            tensors[f"blk.{layer}.{place}_conv_base"] = base
            tensors[f"blk.{layer}.{place}_conv_proj.weight"] = 0.1 * random_matrix(rng, 2 * kernel * n // group, n)
        for name in ("attn_output", "ffn_down"):
            tensors[f"blk.{layer}.{name}.weight"] *= np.float32(0.05)
    values |= {
        "dflash.conv_kernel_size": kernel,
        "dflash.conv_group_size": group,
        "dflash.selector_rank": n,
        "dflash.selector_top_k": len(FEW),
    }
    return target, write_model(folder / "dflash2.gguf", "dflash", values, tensors, _F32)


def _parts(
    target: Path, layers: Sequence[int] | None, block_size: int, n_draft_vocab: int | None, rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Metadata and tensors of a DFlash head."""
    values = metadata_of(Reader(target))
    architecture = values["general.architecture"]
    n = values[f"{architecture}.embedding_length"]
    n_layer = values[f"{architecture}.block_count"] - values.get(f"{architecture}.nextn_predict_layers", 0)
    read = list(layers or (1, n_layer - 1))
    n_head_dim, n_ff, n_own_layers = _HEAD_DIM, 64, 2
    own = {
        "general.name": "random dflash head",
        "dflash.context_length": 2048,
        "dflash.embedding_length": n,
        "dflash.block_count": n_own_layers,
        "dflash.feed_forward_length": n_ff,
        "dflash.attention.head_count": 2,
        "dflash.attention.head_count_kv": 1,
        "dflash.attention.key_length": n_head_dim,
        "dflash.attention.value_length": n_head_dim,
        "dflash.attention.layer_norm_rms_epsilon": 1e-6,
        "dflash.rope.dimension_count": n_head_dim,
        "dflash.block_size": block_size,
        "dflash.target_layers": read,
        "tokenizer.ggml.mask_token_id": values["tokenizer.ggml.eos_token_id"],
    }
    tensors = {
        "fc.weight": random_matrix(rng, n, len(read) * n),
        "enc.output_norm.weight": np.ones(n, np.float32),
        "output_norm.weight": np.full(n, 4, np.float32),
    }
    if n_draft_vocab is not None:
        n_vocab = len(values[TOKENS])
        tensors["output.weight"] = random_matrix(rng, n_draft_vocab, n)
        tensors["d2t"] = np.sort(rng.choice(n_vocab, n_draft_vocab, replace=False)).astype(np.int64)
    shapes = {
        "attn_q": (2 * n_head_dim, n),
        "attn_k": (n_head_dim, n),
        "attn_v": (n_head_dim, n),
        "attn_output": (n, 2 * n_head_dim),
        "ffn_gate": (n_ff, n),
        "ffn_up": (n_ff, n),
        "ffn_down": (n, n_ff),
    }
    for layer in range(n_own_layers):
        block = f"blk.{layer}"
        tensors |= {f"{block}.{name}.weight": random_matrix(rng, *shape) for name, shape in shapes.items()}
        for name, size in (("attn_norm", n), ("ffn_norm", n), ("attn_q_norm", n_head_dim), ("attn_k_norm", n_head_dim)):
            tensors[f"{block}.{name}.weight"] = np.ones(size, np.float32)
    return {key: value for key, value in values.items() if key.startswith("tokenizer.")} | own, tensors

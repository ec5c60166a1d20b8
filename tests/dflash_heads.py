"""Small DFlash heads: from the target's hidden states, one pass drafts a whole block of tokens. Made in milliseconds.

random_dflash   a head for any target of this project, with random weights: its drafts are wrong
random_dspark   the same with DSpark's Markov part, which adds to each row's logits what its own greedy token before
                suggests: its drafts are often right for a target of `tests.mtp_targets.quiet`
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specrun.catalog import embedded
from tests.models import TOKENS, Floats, Reader, metadata_of, random_matrix, write_model

_F32 = gguf.GGMLQuantizationType.F32


def random_dflash(
    path: Path,
    target: Path = embedded.TARGET,
    *,
    layers: Sequence[int] | None = None,
    block_size: int = 8,
    n_draft_vocab: int | None = None,
    seed: int = 0,
) -> Path:
    """A head of two layers for `target`, whose token embedding and, with a full vocabulary, output it uses.

    layers: those whose inputs it reads; the second and the last one by default. block_size: rows of a block, of which
    the first is the root and the others are drafts. n_draft_vocab: tokens that it can draft; None is all of them.
    """
    values, tensors = _parts(target, layers, block_size, n_draft_vocab, np.random.default_rng(seed))
    return write_model(path, "dflash", values, tensors, _F32)


def random_dspark(
    path: Path,
    target: Path = embedded.TARGET,
    *,
    block_size: int = 7,
    n_draft_vocab: int | None = None,
    suggests: bool = True,
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
    return write_model(path, "dflash", values, tensors, weight_type)


def _parts(
    target: Path, layers: Sequence[int] | None, block_size: int, n_draft_vocab: int | None, rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Metadata and tensors of a DFlash head."""
    values = metadata_of(Reader(target))
    architecture = values["general.architecture"]
    n = values[f"{architecture}.embedding_length"]
    n_layer = values[f"{architecture}.block_count"] - values.get(f"{architecture}.nextn_predict_layers", 0)
    read = list(layers or (1, n_layer - 1))
    n_head_dim, n_ff, n_own_layers = 32, 64, 2
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

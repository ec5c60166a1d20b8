"""Small EAGLE-3 heads: real files that the real llama.cpp loads, made in milliseconds.

random_eagle3   random weights: nearly nothing that it drafts is accepted
agreeing_pair   a target, and a head that drafts most of what it writes
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from specrun.catalog import embedded
from tests.models import Floats, Metadata, Reader, metadata_of, random_llama, random_matrix, write_model

_NORM_EPSILON = 1e-5
_F32, _Q8 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0


def random_eagle3(
    path: Path,
    target: Path = embedded.TARGET,
    *,
    n_draft_vocab: int = 512,
    n_ff: int = 64,
    layers: Sequence[int] | None = None,
    owns_embedding: bool = False,
    seed: int = 0,
    metadata: Metadata | None = None,
) -> Path:
    """A head for a target, which lends it its token embedding; written to `path`, which is returned.

    n_draft_vocab: tokens that it can draft. layers: those of the target that it reads; the second, the middle and the
    last one by default. owns_embedding: whether it has an embedding of its own, with random weights.
    metadata: keys set on top (None removes one).
    """
    rng, reader = np.random.default_rng(seed), Reader(target)
    n, n_layer, n_vocab = shape_of(reader)
    n_kv = n // 2
    shapes = {
        "fc": (n, 3 * n), "output": (n_draft_vocab, n), "blk.0.attn_q": (n, 2 * n), "blk.0.attn_k": (n_kv, 2 * n),
        "blk.0.attn_v": (n_kv, 2 * n), "blk.0.attn_output": (n, n), "blk.0.ffn_gate": (n_ff, n),
        "blk.0.ffn_up": (n_ff, n), "blk.0.ffn_down": (n, n_ff),
    }  # fmt: skip
    if owns_embedding:
        shapes["token_embd"] = (n_vocab, n)
    tensors: dict[str, Floats] = {f"{name}.weight": random_matrix(rng, *shape) for name, shape in shapes.items()}
    tensors["d2t"] = np.sort(rng.choice(n_vocab, n_draft_vocab, replace=False)).astype(np.int64)
    values = {"eagle3.target_layers": list(layers or (1, n_layer // 2, n_layer - 1))} | dict(metadata or {})
    return _write(path, reader, 4, 2, values, tensors)


def agreeing_pair(folder: Path, *, n_layer: int = 4, n_draft_vocab: int = 1800) -> tuple[Path, Path]:
    """A target whose next token depends mostly on the last one, and a head that knows how; both in `folder`.

    The target's layers add little to the embedding of a token. In the head each token attends to itself, and what it
    finds there takes the state that it was read with away and puts the token's embedding in its place.
    """
    n, scale = 64, 4.0
    plain = random_llama(folder / "plain.gguf", n_embd=n, n_layer=n_layer, weight_type=_F32)
    reader = Reader(plain)
    values = metadata_of(reader)
    weights = {tensor.name: tensor.data.copy() for tensor in reader.tensors}
    embedding = weights["token_embd.weight"]
    embedding /= np.sqrt(np.square(embedding).mean(axis=1, keepdims=True))
    for name in weights:
        if "attn_output" in name or "ffn_down" in name:
            weights[name] *= 0.3
    target = write_model(
        folder / "agreeing-target.gguf", values.pop("general.architecture"), values, weights,
        _Q8,
    )  # fmt: skip
    rng, one, zero = np.random.default_rng(1), np.eye(n, dtype=np.float32), np.zeros((n, n), np.float32)
    drafted = np.sort(rng.choice(len(embedding), n_draft_vocab, replace=False)).astype(np.int64)
    tensors = {
        "fc.weight": np.hstack([zero, zero, scale * one]),
        "blk.0.attn_q.weight": np.hstack([2 * one, zero]),
        "blk.0.attn_k.weight": np.hstack([2 * one, zero]),
        "blk.0.attn_v.weight": np.hstack([scale * one, -scale * one]),
        "blk.0.attn_output.weight": one,
        "blk.0.ffn_gate.weight": one,
        "blk.0.ffn_up.weight": one,
        "blk.0.ffn_down.weight": zero,
        "output.weight": weights["output.weight"][drafted],
        "d2t": drafted,
    }
    layers = {"eagle3.target_layers": [1, n_layer // 2, n_layer - 1]}
    return target, _write(folder / "agreeing-head.gguf", Reader(target), 1, 1, layers, tensors)


def shape_of(reader: gguf.GGUFReader) -> tuple[int, int, int]:
    """Width, layers and tokens of a model."""
    values = metadata_of(reader)
    architecture = values["general.architecture"]
    n_embd, n_layer = (values[f"{architecture}.{key}"] for key in ("embedding_length", "block_count"))
    return n_embd, n_layer, len(values["tokenizer.ggml.tokens"])


def _write(
    path: Path, target: gguf.GGUFReader, n_head: int, n_head_kv: int, metadata: Metadata, tensors: dict[str, Floats]
) -> Path:
    """An EAGLE-3 file with the target's tokenizer, and with norms that `tensors` lacks."""
    n, _, _ = shape_of(target)
    values = {key: value for key, value in metadata_of(target).items() if key.startswith("tokenizer.")}
    values |= {
        "general.name": "small head",
        "eagle3.context_length": 2048,
        "eagle3.embedding_length": n,
        "eagle3.block_count": 1,
        "eagle3.feed_forward_length": len(tensors["blk.0.ffn_up.weight"]),
        "eagle3.attention.head_count": n_head,
        "eagle3.attention.head_count_kv": n_head_kv,
        "eagle3.attention.layer_norm_rms_epsilon": _NORM_EPSILON,
        "eagle3.rope.dimension_count": n // n_head,
        "eagle3.rope.freq_base": 10000.0,
        "eagle3.target_hidden_size": n,
    }
    norms = {name: np.ones(n, np.float32) for name in ("blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm")}
    norms["output_norm"] = np.full(n, 4, np.float32)
    whole = {f"{name}.weight": values for name, values in norms.items()} | tensors
    return write_model(path, "eagle3", values | dict(metadata), whole, _Q8)

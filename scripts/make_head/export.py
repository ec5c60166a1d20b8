"""Writes a head as a GGUF file that llama.cpp's own tools load, with matrices in Q8_0.

The layout is that of llama.cpp's src/models/eagle3.cpp. The output has the rows of the tokens that the head can draft,
and `d2t` their ids; where these are all tokens of the target, both are left out, and llama.cpp takes the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from specrun.catalog.gguf_file import GgufFile

from .model_writing import add_sizes, copy_tokenizer, write
from .shape import Floats, HeadShape, embedding_rows, output_rows
from .vocabulary import Vocabulary

_Q8_0, _F16 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F16
_BLOCK = 32  # weights of a block of Q8_0
_RIDGE = 1e-3  # of the spread of embeddings, against large factors


def export(
    weights: Mapping[str, Floats], shape: HeadShape, vocabulary: Vocabulary, target: GgufFile, path: Path, how: str
) -> None:
    """Write a head to `path`, in a folder that is there.

    weights: by llama.cpp's names, `token_embd.weight` with all tokens of the target. how: what is said of its making.
    Raises OSError.
    """
    writer = gguf.GGUFWriter(path, "eagle3")
    _add_facts(writer, shape, target, how)
    for name, values in weights.items():
        _add(writer, name, values)
    if len(vocabulary.kept) < shape.n_vocab:
        _add(writer, "output.weight", output_rows(target, vocabulary.kept))
        writer.add_tensor("d2t", vocabulary.kept.astype(np.int64))
    write(writer)


def whole_embedding(learned: Floats, vocabulary: Vocabulary, target: GgufFile) -> Floats:
    """float32[n_vocab, width]: the head's embedding of all tokens.

    learned: float32[n, width], the rows of the tokens that the head was shown. Those of the others are fitted: a linear
    map of the target's embeddings that gives the learned rows where they are known.
    """
    known = embedding_rows(target, vocabulary.read)
    centre, mean = known.mean(axis=0), learned.mean(axis=0)
    known = known - centre
    square = known.T @ known
    square += _RIDGE * np.trace(square) / len(square) * np.eye(len(square), dtype=np.float32)
    matrix = np.linalg.solve(square, known.T @ (learned - mean))
    whole = np.empty((vocabulary.n_vocab, learned.shape[1]), np.float32)
    whole[vocabulary.read] = learned
    others = np.setdiff1d(np.arange(vocabulary.n_vocab), vocabulary.read)
    whole[others] = (embedding_rows(target, others) - centre) @ matrix + mean
    return whole


def _add_facts(writer: gguf.GGUFWriter, shape: HeadShape, target: GgufFile, how: str) -> None:
    """Say what the file is and the sizes of the head, and copy the target's tokenizer and licence."""
    writer.add_type("model")
    writer.add_name(f"EAGLE-3 head for {target.name}")
    writer.add_description(f"Made by `scripts.make_head` of specrun: {how}")
    if isinstance(licence := target.metadata.get("general.license"), str):
        writer.add_license(licence)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_sizes(
        writer,
        n_ctx=shape.n_ctx,
        width=shape.width,
        layers=1,
        feed_forward=shape.feed_forward,
        heads=shape.heads,
        kv_heads=shape.heads,
        head_width=shape.head_width,
        rope_base=shape.rope_base,
        epsilon=shape.epsilon,
    )
    writer.add_uint32("eagle3.target_hidden_size", shape.width)
    layers = list(shape.target_layers)
    writer.add_key_value("eagle3.target_layers", layers, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)
    copy_tokenizer(writer, target.path)


def _add(writer: gguf.GGUFWriter, name: str, values: Floats) -> None:
    """A matrix in Q8_0, or in F16 where its rows are no whole blocks; a norm as it is."""
    if values.ndim == 1:
        writer.add_tensor(name, values)
        return
    kind = _F16 if values.shape[1] % _BLOCK else _Q8_0
    data = values.astype(np.float16) if kind == _F16 else gguf.quants.quantize(values, kind)
    writer.add_tensor(name, data, raw_dtype=kind)

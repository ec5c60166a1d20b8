"""GGUF models with other vocabularies: further tokens, fewer, or the same in another order. For measuring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specrun.catalog.gguf_header import EMBEDDING, OUTPUT

TOKENS = "tokenizer.ggml.tokens"
TYPES = "tokenizer.ggml.token_type"
_MERGES = "tokenizer.ggml.merges"


def with_more_tokens(source: Path, path: Path, added: list[str], kind: gguf.TokenType) -> Path:
    """Write `source` with the tokens `added` to `path`. Their weights are zero, in all types encoded as zero bytes.

    kind: of the tokens that are added.
    """
    n_vocab = len(gguf.GGUFReader(source).fields[TOKENS].contents())
    return with_vocabulary(source, path, range(n_vocab), added, kind)


def in_another_order(source: Path, path: Path, seed: int = 0) -> Path:
    """Write `source` to `path` with the ids of its tokens permuted at random."""
    n_vocab = len(gguf.GGUFReader(source).fields[TOKENS].contents())
    return with_vocabulary(source, path, np.random.default_rng(seed).permutation(n_vocab).tolist())


def without_tokens(source: Path, path: Path, counts: Sequence[int], share: float, seed: int = 0) -> Path:
    """Write `source` to `path` without some tokens of several letters, so that it has `share` of the tokens of a text.

    counts: how often each token is in the text. Of the tokens that are not there, the same share stays.
    """
    fields = gguf.GGUFReader(source).fields
    names, types = fields[TOKENS].contents(), fields[TYPES].contents()
    can_go = [i for i, kind in enumerate(types) if kind == gguf.TokenType.NORMAL and len(names[i]) > 1]
    rng = np.random.default_rng(seed)
    left, gone = (1 - share) * sum(counts), set[int]()
    for token in rng.permutation(can_go).tolist():
        if counts[token] == 0 and rng.random() > share:
            gone.add(token)
        elif 0 < counts[token] <= left:
            left -= counts[token]
            gone.add(token)
    return with_vocabulary(source, path, [i for i in range(len(names)) if i not in gone])


def with_vocabulary(
    source: Path,
    path: Path,
    kept: Sequence[int],
    added: Sequence[str] = (),
    kind: gguf.TokenType = gguf.TokenType.UNUSED,
) -> Path:
    """Write `source` to `path` with the tokens `kept` in this order, and then the tokens `added` with zero weights.

    Merges of the tokenizer that need a token which is not kept are left out.
    """
    reader = gguf.GGUFReader(source)
    ids = {old: new for new, old in enumerate(kept)}
    all_names = reader.fields[TOKENS].contents()
    names = {all_names[i] for i in kept}
    further = {TOKENS: list(added), TYPES: [int(kind)] * len(added), "tokenizer.ggml.scores": [0.0] * len(added)}
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())

    def changed(key: str, value: Any) -> Any:
        if key in further:
            return [value[i] for i in kept] + further[key]
        if key.endswith("_token_id"):
            return ids[value]
        if key == _MERGES:
            return [merge for merge in value if {*merge.split(" "), merge.replace(" ", "")} <= names]
        return len(kept) + len(added) if key.endswith(".vocab_size") else value

    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            value = changed(key, field.contents())
            writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        rows = np.asarray(tensor.data)
        if tensor.name in (EMBEDDING, OUTPUT):
            rows = np.pad(rows[np.asarray(kept)], ((0, len(added)), (0, 0)))
        writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

"""A GGUF model with further tokens, for measuring what depends on the size of a vocabulary."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from specrun.catalog.gguf_header import EMBEDDING, OUTPUT

TOKENS = "tokenizer.ggml.tokens"


def with_more_tokens(source: Path, path: Path, added: list[str], kind: gguf.TokenType) -> Path:
    """Write `source` with the tokens `added` to `path`. Their weights are zero, in all types encoded as zero bytes.

    kind: of the tokens that are added.
    """
    reader = gguf.GGUFReader(source)
    values = {
        TOKENS: added,
        "tokenizer.ggml.token_type": [int(kind)] * len(added),
        "tokenizer.ggml.scores": [0.0] * len(added),
    }
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            value = field.contents() + values[key] if key in values else field.contents()
            value = value + len(added) if key.endswith(".vocab_size") else value
            writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        rows = np.asarray(tensor.data)
        if tensor.name in (EMBEDDING, OUTPUT):
            rows = np.pad(rows, ((0, len(added)), (0, 0)))
        writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

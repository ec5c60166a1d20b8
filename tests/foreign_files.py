"""Files that people name as models and that are none: what llama.cpp's tools write beside models, and other formats.

GGUFS    makers of GGUF files, by what they hold
OTHERS   contents of files that are no GGUF
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.models import edited, random_llama

_ROWS = np.ones((4, 64), np.float32)
_VECTOR = np.ones(64, np.float32)
# The first keys and tensors of each, as llama.cpp's converter and tools write them.
_LORA = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 16.0}
_IMATRIX = {"general.type": "imatrix", "imatrix.datasets": ["a.txt"], "imatrix.chunk_count": 1}
_VISION = {"general.type": "mmproj", "clip.has_vision_encoder": True, "clip.vision.block_count": 1}
_OLD_VISION = {"clip.has_vision_encoder": True}
_CONTROL = {"controlvector.model_hint": "llama", "controlvector.layer_count": 1}


def _write(
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    path: Path,
    order: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture, endianess=order)
    for key, value in metadata.items():
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind, gguf.GGUFValueType.STRING if isinstance(value, list) else None)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _without_tokenizer(kind: str | None, path: Path) -> Path:
    source = random_llama(path.with_name(f"{path.stem}-source.gguf"), n_layer=1)
    n_vocab = len(gguf.GGUFReader(source).fields["tokenizer.ggml.tokens"].data)
    return edited(path, source, {"tokenizer.ggml.model": kind, "llama.vocab_size": n_vocab})


_QUERY = "blk.0.attn_q.weight"
GGUFS: dict[str, Callable[[Path], Path]] = {
    "LoRA": partial(_write, "llama", _LORA, {f"{_QUERY}.lora_a": _ROWS, f"{_QUERY}.lora_b": _ROWS.T.copy()}),
    "importance": partial(_write, "", _IMATRIX, {f"{_QUERY}.in_sum2": _ROWS[:1], f"{_QUERY}.counts": _ROWS[:1, :1]}),
    "projector": partial(_write, "clip", _VISION, {"v.patch_embd.weight": np.ones((4, 3, 2, 2), np.float32)}),
    "old projector": partial(_write, "clip", _OLD_VISION, {"v.class_embd": _VECTOR}),
    "control vector": partial(_write, "controlvector", _CONTROL, {"direction.1": _VECTOR}),
    "no tokenizer": partial(_without_tokenizer, "no_vocab"),
    "tokenizer of the kind none": partial(_without_tokenizer, "none"),
    "tokenizer that is not named": partial(_without_tokenizer, None),
    "big-endian": partial(
        _write, "llama", {"llama.block_count": 1}, {"output_norm.weight": _VECTOR}, order=gguf.GGUFEndian.BIG
    ),
}
OTHERS: dict[str, bytes] = {
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4920739232\n",
    "web page": b"\n<!-- hub -->\n<!DOCTYPE html>\n<html><head><title>org/repo</title>",
    "no web page": b"<!---->" * 73,
    "older web page": b"<HTML><BODY>404</BODY></HTML>",
    "Invalid username": b"Invalid username or password.",
    "AccessDenied": b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>',
    "zeros": bytes(4096),
    "older format": b"tjgg" + struct.pack("<8I", 3, 32000, 4096, 256, 32, 32, 128, 2) + bytes(range(128, 256)),
    "safetensors": struct.pack("<Q", 64) + b'{"model.embed_tokens.weight":{"dtype":"BF16"}}',
    "pickle": b"PK\x03\x04\x00\x00\x08\x08archive/data.pkl\x80\x02}q\x00",
}

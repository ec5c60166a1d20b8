"""What trials of llama.cpp's kernels on a single layer share: the layer, the clock, and where results are kept."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.zero_model import write_zeros
from specrun.hardware import machine
from specrun.hardware.machine import Machine
from specrun.llama import devices, library
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, LlamaContext
from specrun.locations import data_dir


@dataclass(frozen=True)
class Heads:
    """The attention of a layer. size: numbers of a head of K and V."""

    n_heads: int
    n_kv_heads: int
    size: int

    @classmethod
    def of(cls, file: GgufFile) -> Heads | None:
        """The heads of a model's first layer; None if it has no matrices of their own for Q and K."""
        rows = {tensor.name: tensor.shape[-1] for tensor in file.tensors if tensor.name.startswith("blk.0.attn_")}
        q, k = rows.get("blk.0.attn_q.weight"), rows.get("blk.0.attn_k.weight")
        if not q or not k or not file.n_heads or q % file.n_heads or k % (q // file.n_heads):
            return None
        size = q // file.n_heads
        return cls(file.n_heads, k // size, size)

    def write(self, path: Path, width: int, feed_forward: int, kind: str) -> Path:
        """Write a model of one layer with these heads and hardly any vocabulary.

        width, feed_forward: of the layer. kind: the type of its matrices, by ggml's name.
        """
        n_q, n_kv = self.n_heads * self.size, self.n_kv_heads * self.size
        matrices = {
            "blk.0.attn_q.weight": (width, n_q),
            "blk.0.attn_k.weight": (width, n_kv),
            "blk.0.attn_v.weight": (width, n_kv),
            "blk.0.attn_output.weight": (n_q, width),
            "blk.0.ffn_gate.weight": (width, feed_forward),
            "blk.0.ffn_up.weight": (width, feed_forward),
            "blk.0.ffn_down.weight": (feed_forward, width),
        }
        metadata = {
            "vocab_size": 32,
            "context_length": 4096,
            "embedding_length": width,
            "block_count": 1,
            "feed_forward_length": feed_forward,
            "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv_heads,
            "attention.key_length": self.size,
            "attention.value_length": self.size,
            "rope.dimension_count": self.size,
        }
        types = {"token_embd.weight": "F16", **dict.fromkeys(matrices, kind)}
        return write_zeros(path, metadata, {"token_embd.weight": (width, 32), **matrices}, types)


def result_path(folder: str, tried: Mapping[str, Any]) -> Path:
    """The file in a folder of the data folder that keeps the result of a trial on this machine, with this llama.cpp.

    tried: what else the result depends on.
    """
    here = Machine.read(None, devices.devices(), devices.system_info())
    identity = machine.surroundings(here, library.build(), library.bindings_version())
    return data_dir() / folder / f"{machine.fingerprint({**identity, **tried})}.json"


def pass_ms(context: LlamaContext, n: int, start: int, n_outputs: int) -> float:
    """Milliseconds of a pass over `n` tokens behind `start` cached ones, which is taken back.

    n_outputs: wanted rows of logits.
    """
    batch = committed_tokens([1] * n, start, 1, n_outputs=n_outputs)
    started = time.perf_counter()
    context.decode(batch)
    ms = (time.perf_counter() - started) * 1e3
    context.remove(ALL_SEQUENCES, start)
    return ms

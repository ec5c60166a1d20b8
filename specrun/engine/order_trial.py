"""From which size on passes are faster with weights as they are in the file than with re-ordered ones, by a trial.

Both kinds of kernels are timed on one layer of the type that most of a model's weights have. On CPUs and for types for
which llama.cpp has no tiled kernels there is nothing to try: re-ordered weights win at every size.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.zero_model import write_zeros
from specrun.errors import LlamaError
from specrun.hardware import machine
from specrun.hardware.machine import Machine
from specrun.llama import LlamaModel, devices, library, tiled_kernels
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama_settings import LlamaSettings
from specrun.locations import data_dir
from specrun.remembered import recall, remember

SIZES = (8, 12, 16, 24, 32, 48, 64)  # tokens of the timed passes; tiled kernels begin at 8
_ROUNDS = 5
_CLEARLY = 0.95  # share of the time with re-ordered weights that is clearly less
_WIDTH, _FF, _HEADS, _KV_HEADS = 2048, 5632, 16, 4  # of the layer, about those of a model of a billion parameters
_NEVER = SIZES[-1] + 1  # the smallest size where no size is faster, in what is kept


def file_order_from(file: GgufFile, threads: int | None) -> int | None:
    """Tokens of the smallest passes that are clearly faster with weights as they are in the file, as all larger ones
    are; None if there are none. By an earlier trial, or one made now, which takes a second.

    threads: of a pass; None for the default.
    """
    kind = next(iter(file.types))  # the one with the most bytes
    if not tiled_kernels.compute([kind]) or tiled_kernels.in_use() == "never":
        return None
    here = Machine.read(None, devices.devices(), devices.system_info())
    identity = machine.surroundings(here, library.build(), library.bindings_version())
    identity |= {"type": kind, "threads": threads}
    path = data_dir() / "orders" / f"{machine.fingerprint(identity)}.json"
    least = recall(path, lambda value: int(value["least"]))
    if least is None:
        try:
            ms = measured(kind, threads)
        except (LlamaError, OSError):
            return None  # this llama.cpp re-orders otherwise, or memory or disk are full: nothing is known
        least = smallest(ms)
        remember(path, {"type": kind, "ms": ms, "least": least})
    return None if least >= _NEVER else least


def measured(kind: str, threads: int | None) -> dict[str, dict[int, float]]:
    """Milliseconds of passes by size, over weights `reordered` and as they are in the `file`.

    kind: their type, by ggml's name. Raises LlamaError if this llama.cpp cannot compute with both.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = _write(Path(folder) / "layer.gguf", kind)
        contexts = {}
        for name, least in {"reordered": _NEVER, "file": 1}.items():
            settings = LlamaSettings(threads=threads, repack=True, file_order_from=least)
            model = stack.enter_context(LlamaModel(path, settings))
            if not (model.orders and model.orders.n_tensors):
                raise LlamaError(f"llama.cpp does not re-order weights of the type {kind} on this CPU")
            config = ContextConfig(SIZES[-1], n_seq_max=1, n_batch=SIZES[-1], n_outputs=1, settings=settings)
            contexts[name] = stack.enter_context(LlamaContext(model, config))
        taken: dict[tuple[str, int], list[float]] = {(name, n): [] for n in SIZES for name in contexts}
        for _ in range(_ROUNDS):
            for (name, n), ms in taken.items():
                ms.append(_pass_ms(contexts[name], n))
    return {name: {n: statistics.median(taken[name, n]) for n in SIZES} for name in contexts}


def smallest(ms: Mapping[str, Mapping[int, float]]) -> int:
    """The smallest size from which on passes are clearly faster with weights as they are in the file; more than the
    largest of SIZES if there is none. ms: as `measured` returns them.
    """
    least = _NEVER
    for n in reversed(SIZES):
        if ms["file"][n] > _CLEARLY * ms["reordered"][n]:
            break
        least = n
    return least


def _write(path: Path, kind: str) -> Path:
    head = _WIDTH // _HEADS
    matrices = {
        "blk.0.attn_q.weight": (_WIDTH, _WIDTH),
        "blk.0.attn_k.weight": (_WIDTH, _KV_HEADS * head),
        "blk.0.attn_v.weight": (_WIDTH, _KV_HEADS * head),
        "blk.0.attn_output.weight": (_WIDTH, _WIDTH),
        "blk.0.ffn_gate.weight": (_WIDTH, _FF),
        "blk.0.ffn_up.weight": (_WIDTH, _FF),
        "blk.0.ffn_down.weight": (_FF, _WIDTH),
    }
    metadata = {
        "vocab_size": 32,
        "context_length": 4096,
        "embedding_length": _WIDTH,
        "block_count": 1,
        "feed_forward_length": _FF,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": _KV_HEADS,
        "rope.dimension_count": head,
    }
    types = dict.fromkeys(matrices, kind) | {"token_embd.weight": "F16"}
    return write_zeros(path, metadata, {"token_embd.weight": (_WIDTH, 32), **matrices}, types)


def _pass_ms(context: LlamaContext, n: int) -> float:
    batch = committed_tokens([1] * n, 0, 1, n_outputs=0)
    started = time.perf_counter()
    context.decode(batch)
    ms = (time.perf_counter() - started) * 1e3
    context.remove(ALL_SEQUENCES, 0)
    return ms

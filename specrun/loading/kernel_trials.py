"""Which order of weights large passes are faster with on this CPU, measured in a second on one layer.

Large passes may be faster with weights as they are in the file than with re-ordered weights. Both are timed on a layer
of the type that most of a model's weights have. On CPUs and for types for which llama.cpp has no tiled kernels there is
nothing to try: re-ordered weights win at every size.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from specrun import clock, kept_facts
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import LlamaError
from specrun.hardware.machine import surroundings
from specrun.llama import LlamaModel, devices, tiled_kernels
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama.facts.relied_on import REORDERED, why_not
from specrun.llama.facts.tiny_model import write_dense
from specrun.llama_settings import LlamaSettings
from specrun.loading.trial import CLEARLY_AT_ONCE, is_faster

SIZES = (8, 12, 16, 24, 32, 48, 64)  # tokens of passes in both orders; tiled kernels begin at 8
_ROUNDS = 5
_HEADS, _WIDTH, _FEED_FORWARD = (16, 4, 128), 2048, 5632  # of the layer, about those of a model of a billion parameters
_NEVER = SIZES[-1] + 1  # the smallest size where no size is faster, in what is kept


def file_order_from(file: GgufFile, threads: int | None) -> int | None:
    """Tokens of the smallest passes that are clearly faster with weights as they are in the file, as all larger ones
    are; None if there are none. By an earlier trial, or one made now, which takes a second.

    threads: of a pass; None for the default.
    """
    kind = next(iter(file.types))  # the type with the most bytes
    if not tiled_kernels.compute([kind]) or tiled_kernels.in_use() == "never" or why_not(REORDERED):
        return None
    # The text may depend on the choice, so another trial must not change it.
    of = {**surroundings(devices.this_machine()), "type": kind, "threads": threads}
    try:
        least = kept_facts.once("orders", of, lambda: smallest(orders_ms(kind, threads)), int)
    except (LlamaError, OSError):  # llama.cpp cannot be measured so, or memory or the disk is full
        return None
    return least if least < _NEVER else None


def orders_ms(kind: str, threads: int | None) -> dict[str, dict[int, float]]:
    """Milliseconds of passes by size, over weights `reordered` and as they are in the `file`. All take turns in each
    round, because the machine's speed changes.

    kind: their type, by ggml's name. Raises LlamaError if this llama.cpp cannot compute with both.
    """
    taken: dict[tuple[str, int], list[float]] = {(name, n): [] for n in SIZES for name in ("reordered", "file")}
    contexts: dict[str, LlamaContext] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = write_dense(Path(folder) / "layer.gguf", _HEADS, _WIDTH, _FEED_FORWARD, 32, 1, ["F16", kind])
        for name, least in {"reordered": _NEVER, "file": 1}.items():
            settings = LlamaSettings(threads=threads, repack=True, file_order_from=least)
            model = stack.enter_context(LlamaModel(path, settings))
            if not model.orders or not model.orders.places:
                raise LlamaError(f"llama.cpp does not re-order weights of the type {kind} on this CPU")
            config = ContextConfig(SIZES[-1], n_seq_max=1, n_batch=SIZES[-1], n_outputs=1, settings=settings)
            contexts[name] = stack.enter_context(LlamaContext(model, config))
        for _ in range(_ROUNDS):
            for (name, n), ms in taken.items():
                batch = committed_tokens([1] * n, 0, 1, n_outputs=0)
                started = clock.now()
                contexts[name].decode(batch)
                ms.append((clock.now() - started) * 1e3)
                contexts[name].remove(ALL_SEQUENCES, 0)
    return {name: {n: statistics.median(taken[name, n]) for n in SIZES} for name in contexts}


def smallest(ms: Mapping[str, Mapping[int, float]]) -> int:
    """The smallest size from which on passes are clearly faster with weights as they are in the file; more than the
    largest of SIZES if there is none. ms: as `orders_ms` returns them.
    """

    def wins(n: int) -> bool:
        return is_faster(ms["file"][n], ms["reordered"][n], CLEARLY_AT_ONCE)

    return min(itertools.takewhile(wins, reversed(SIZES)), default=_NEVER)

"""From which size on passes are faster with weights as they are in the file than with re-ordered ones, by a trial.

Both kinds of kernels are timed on one layer of the type that most of a model's weights have. On CPUs and for types for
which llama.cpp has no tiled kernels there is nothing to try: re-ordered weights win at every size.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from specrun.catalog.gguf_file import GgufFile
from specrun.engine.layer_trial import Heads, pass_ms, result_path
from specrun.errors import LlamaError
from specrun.llama import LlamaModel, tiled_kernels
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama_settings import LlamaSettings
from specrun.locations import recall, remember

SIZES = (8, 12, 16, 24, 32, 48, 64)  # tokens of the timed passes; tiled kernels begin at 8
_ROUNDS = 5
_CLEARLY = 0.95  # share of the time with re-ordered weights that is clearly less
_WIDTH, _FF, _HEADS = 2048, 5632, Heads(16, 4, 128)  # of the layer, about those of a model of a billion parameters
_NEVER = SIZES[-1] + 1  # the smallest size where no size is faster, in what is kept


def file_order_from(file: GgufFile, threads: int | None) -> int | None:
    """Tokens of the smallest passes that are clearly faster with weights as they are in the file, as all larger ones
    are; None if there are none. By an earlier trial, or one made now, which takes a second.

    threads: of a pass; None for the default.
    """
    kind = next(iter(file.types))  # the one with the most bytes
    if not tiled_kernels.compute([kind]) or tiled_kernels.in_use() == "never":
        return None
    path = result_path("orders", {"type": kind, "threads": threads})
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
        path = _HEADS.write(Path(folder) / "layer.gguf", _WIDTH, _FF, kind)
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
                ms.append(pass_ms(contexts[name], n, start=0, n_outputs=0))
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

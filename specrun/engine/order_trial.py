"""From which size on passes are faster with weights as they are in the file than with re-ordered weights, by a trial.

Both kinds of kernels are timed on one layer of the type that most of a model's weights have. On CPUs and for types for
which llama.cpp has no tiled kernels there is nothing to try: re-ordered weights win at every size.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from specrun.catalog.gguf_file import GgufFile
from specrun.engine import layer_trial, trial
from specrun.engine.layer_trial import Heads
from specrun.errors import LlamaError
from specrun.llama import tiled_kernels
from specrun.llama.context import ContextConfig
from specrun.llama_settings import LlamaSettings

SIZES = (8, 12, 16, 24, 32, 48, 64)  # tokens of the timed passes; tiled kernels begin at 8
_ROUNDS = 5
_WIDTH, _FF, _HEADS = 2048, 5632, Heads(16, 4, 128)  # of the layer, about those of a model of a billion parameters
_NEVER = SIZES[-1] + 1  # the smallest size where no size is faster, in what is kept


def file_order_from(file: GgufFile, threads: int | None) -> int | None:
    """Tokens of the smallest passes that are clearly faster with weights as they are in the file, as all larger ones
    are; None if there are none. By an earlier trial, or one made now, which takes a second.

    threads: of a pass; None for the default.
    """
    kind = next(iter(file.types))  # the type with the most bytes
    if not tiled_kernels.compute([kind]) or tiled_kernels.in_use() == "never":
        return None
    subject = {"type": kind, "threads": threads}
    least = trial.once("orders", subject, "least", lambda: measured(kind, threads), smallest)
    return None if least is None or least >= _NEVER else least


def measured(kind: str, threads: int | None) -> dict[str, dict[int, float]]:
    """Milliseconds of passes by size, over weights `reordered` and as they are in the `file`.

    kind: their type, by ggml's name. Raises LlamaError if this llama.cpp cannot compute with both.
    """
    config = ContextConfig(SIZES[-1], n_seq_max=1, n_batch=SIZES[-1], n_outputs=1)
    ways = {
        name: LlamaSettings(threads=threads, repack=True, file_order_from=least)
        for name, least in {"reordered": _NEVER, "file": 1}.items()
    }
    with layer_trial.opened(_HEADS, _WIDTH, _FF, kind, config, ways) as contexts:
        if not all(context.model.orders and context.model.orders.n_tensors for context in contexts.values()):
            raise LlamaError(f"llama.cpp does not re-order weights of the type {kind} on this CPU")
        return layer_trial.medians(contexts, SIZES, _ROUNDS, start=0, outputs=False)


def smallest(ms: Mapping[str, Mapping[int, float]]) -> int:
    """The smallest size from which on passes are clearly faster with weights as they are in the file; more than the
    largest of SIZES if there is none. ms: as `measured` returns them.
    """

    def wins(n: int) -> bool:
        return trial.is_faster(ms["file"][n], ms["reordered"][n], trial.CLEARLY_AT_ONCE)

    return min(itertools.takewhile(wins, reversed(SIZES)), default=_NEVER)

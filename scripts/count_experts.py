"""Count the experts that a mixture's passes read, by the tokens of a pass, and time these passes; one line of JSON.

    python scripts/count_experts.py MIXTURE.gguf [--sizes 1,2,4,8,16,32,64] [--rounds 20] [-t THREADS]

Counted are the experts of a layer that any token of a pass chose, on average over layers and passes: `text` for passes
over the next tokens of real text, which is how `specrun tune` times them, `repeated` for passes over one token again
and again, and `expected` if tokens choose independently (specrun/speculation/planning/pass_times.py). llama.cpp's
eval callback tells what was chosen; passes are timed without it. `ms` are medians, and `relative` is over one token.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import expert_pages
from specrun.decoding import calibration_texts as texts
from specrun.hardware.cpu import usable_cores
from specrun.hardware.memory import Pressure
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.streaming.address_space import PAGE
from specrun.llama.streaming.cached_experts import CachedExperts
from specrun.llama_settings import LlamaSettings
from specrun.speculation.planning.pass_times import ExpertGrowth
from specrun.speculation.tree import TokenTree
from specrun.tuning.pass_timer import TargetTimer

CTX = 64  # tokens after which passes run


class Counted(CachedExperts):
    """Notes how many experts each layer of a pass reads, and reads nothing itself."""

    def __init__(self, file: GgufFile) -> None:
        room, never = 1 << 60, Pressure(0, lambda: 0)
        super().__init__(expert_pages(file, PAGE), file.n_experts_used, room, never)
        self.counts: list[int] = []

    def _read(self, _layer: int, counts: NDArray[np.int64]) -> None:
        self.counts.append(int(np.count_nonzero(counts)))


def counts(path: Path, config: ContextConfig, text: str, sizes: Sequence[int], n_passes: int) -> dict[str, list[float]]:
    """Experts of a layer that a pass of each size reads: over real text, and over one token repeated."""
    file = GgufFile.read(path)
    found: dict[str, list[float]] = {"text": [], "repeated": []}
    with (
        LlamaModel(path, config.settings) as model,
        Counted(file) as weights,
        LlamaContext(model, config, weights) as context,
    ):
        target = TargetContext(context)
        tokens = model.tokenize(text, add_special=False)
        timer = TargetTimer(target, tokens)
        timer.fill(CTX)
        for n in sizes:
            weights.counts = []
            for _ in range(n_passes):
                timer.ms(n)
            found["text"].append(statistics.fmean(weights.counts))
            weights.counts = []
            for token in tokens[:n_passes]:
                target.tokens[-1] = token
                target.score(TokenTree.chain([token] * n))
                target.drop_tree()
            found["repeated"].append(statistics.fmean(weights.counts))
    return found


def times(path: Path, config: ContextConfig, text: str, sizes: Sequence[int], n_rounds: int) -> list[float]:
    """Median milliseconds of a pass of each size over real text; sizes take turns."""
    ms: dict[int, list[float]] = {n: [] for n in sizes}
    with LlamaModel(path, config.settings) as model, LlamaContext(model, config) as context:
        timer = TargetTimer(TargetContext(context), model.tokenize(text, add_special=False))
        timer.fill(CTX)
        for _ in range(n_rounds):
            for n in sizes:
                ms[n].append(timer.ms(n))
    return [statistics.median(ms[n]) for n in sizes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mixture", type=Path)
    parser.add_argument("--sizes", default="1,2,4,8,16,32,64")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="passes of each size")
    parser.add_argument("--load-mode", default=None, choices=["none", "mmap"])
    parser.add_argument("-t", "--threads", type=int, default=usable_cores(), metavar="N")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    file = GgufFile.read(options.mixture)
    largest = max(sizes)
    mapped = ContextConfig(CTX + largest + 8, 1, max(CTX, largest), largest, LlamaSettings(threads=options.threads))
    timed = ContextConfig(
        *(mapped.n_ctx, 1, mapped.n_batch, largest),
        LlamaSettings(threads=options.threads, load_mode=options.load_mode),
    )
    text = texts.together()
    growth = ExpertGrowth(file.n_experts, file.n_experts_used, 1.0).row(largest)
    found = counts(options.mixture, mapped, text, sizes, max(options.rounds // 4, 2))
    ms = times(options.mixture, timed, text, sizes, options.rounds)
    rows = {
        "sizes": sizes,
        **{name: [round(n, 2) for n in row] for name, row in found.items()},
        "expected": [round(float(file.n_experts_used * growth[n]), 2) for n in sizes],
        "ms": [round(one, 3) for one in ms],
        "relative": [round(one / ms[0], 2) for one in ms],
    }
    print(json.dumps(rows))


if __name__ == "__main__":
    main()

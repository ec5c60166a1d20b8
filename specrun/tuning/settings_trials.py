"""Which of llama.cpp's settings are fastest here: each is tried on the loaded model, and one by one kept or not.

What the best kernel is depends on the size of the pass (docs/benchmarks), so settings are compared by the rate of the
best pass, for a draft of usual quality. Settings that keep logits the same bits in passes of every size win unless
another is clearly faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specrun.engine.model import Model
from specrun.engine.run_options import RunOptions
from specrun.errors import LlamaError
from specrun.llama.invariance import exact_up_to
from specrun.llama_settings import LlamaSettings
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.tuning.pass_timer import TargetTimer, rounds

_SIZES = (1, 2, 4, 8, 16, 32, 64)
_CTX = 600  # where llama.cpp's attention kernels for short contexts no longer hide what those for long ones do
_WORTH_IT = 1.03  # how much faster than the best so far settings must be: to give up bit-exactness, or at all
_TOKENS_PER_DOUBLING = 0.62  # of the nodes: what trees of a usual draft commit (docs/benchmarks/growth.md)
_ROUNDS = 3
_COMPARED, _COMPARED_IF_SLOW = 40, 4  # tokens, for exactness


@dataclass(frozen=True)
class Tried:
    """Settings and what they gave. ms: by size of the pass. exact_up_to: 1 if passes are not bit-exact."""

    name: str
    settings: LlamaSettings
    ms: dict[int, float]
    exact_up_to: int

    @property
    def score(self) -> float:
        """Tokens a millisecond of the best pass, with a draft of usual quality."""
        return max((1 + _TOKENS_PER_DOUBLING * math.log2(n)) / ms for n, ms in self.ms.items())

    @property
    def is_exact(self) -> bool:
        return self.exact_up_to >= max(self.ms)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ms": {str(n): round(ms, 3) for n, ms in self.ms.items()},
            "exact_up_to": self.exact_up_to,
            "score": round(self.score, 6),
        }


def variations(
    n_logical: int, n_threads: int, can_repack: bool, shares: bool, exact: bool
) -> Iterator[tuple[str, LlamaSettings]]:
    """Settings to try, each on top of what was kept before. can_repack: all weights lie in RAM and fit. shares: some
    layers lie in VRAM and some in RAM. exact: leave out those whose kernels are known to depend on the size of a pass.
    """
    if shares:
        yield "weights in RAM multiplied where they are", LlamaSettings(op_offload=False)
        yield "weights in RAM read, not mapped", LlamaSettings(load_mode="none")  # llama.cpp then pins them
    if n_logical != n_threads:
        yield f"{n_logical} threads", LlamaSettings(threads=n_logical)
        yield f"{n_logical} threads for several tokens", LlamaSettings(threads_batch=n_logical)
    # Without flash attention llama.cpp's CPU multiplies whole matrices, which for trees behind a long context may be
    # several times as fast; in f32 its sums do not depend on the size of the pass for some quantizations.
    yield "no flash attention, K and V f32", LlamaSettings(type_k="f32", type_v="f32", flash_attn="off")
    if not exact:
        yield "no flash attention, K and V f16", LlamaSettings(type_k="f16", type_v="f16", flash_attn="off")
        yield "K and V both f16", LlamaSettings(type_k="f16", type_v="f16", flash_attn="on")
        if can_repack:
            yield "repacked weights", LlamaSettings(repack=True)


def choose(
    options: RunOptions,
    candidates: Sequence[tuple[str, LlamaSettings]],
    tokens_of: Callable[[Model], list[int]],
    exact: bool,
    over: Callable[[], bool],
    progress: Callable[[str], None],
) -> tuple[LlamaSettings, list[Tried]]:
    """The settings of the target that are fastest, and all that were tried, the defaults first.

    options: what the user decided stays. `over` is asked before every candidate. tokens_of: a text to time on.
    """
    progress("settings: defaults")
    best = _try("defaults", options, LlamaSettings(), tokens_of)
    tried = [best]
    for name, change in candidates:
        if over():
            break
        if change.over(options.settings) != options.settings.over(change):
            continue  # the user has decided otherwise
        progress(f"settings: {name}")
        try:
            found = _try(name, options, change.over(best.settings), tokens_of)
        except LlamaError:
            continue  # not with this model, or not enough memory for it: the settings before remain
        tried.append(found)
        # Exact settings within that share win, too, should a change before have given exactness up.
        wanted = 1 / _WORTH_IT if found.is_exact and not best.is_exact else _WORTH_IT
        if found.score > wanted * best.score and (found.is_exact or not exact):
            best = found
    return best.settings, tried


def _try(name: str, options: RunOptions, settings: LlamaSettings, tokens_of: Callable[[Model], list[int]]) -> Tried:
    whole = options.settings.over(settings)
    largest = SPECEXEC.plan(max(_SIZES), 8)
    with Model(replace(options, settings=whole, plans=(OFF.plan(),), largest=largest, draft=None)) as model:
        tokens = tokens_of(model)
        target = model.engine.target
        ctx = max(8, min(_CTX, model.engine.ctx_size - max(_SIZES) - 1))
        timer = TargetTimer(target, tokens, max(_SIZES))
        timer.fill(ctx)
        timer.ms(1)
        plain = timer.ms(1)
        # Where a pass over many tokens takes many times longer, larger ones cannot be the best.
        sizes = [1]
        for n in _SIZES[1:]:
            sizes.append(n)
            if timer.ms(n) > (1 + _TOKENS_PER_DOUBLING * math.log2(4 * n)) * 2 * plain:
                break
        measured = rounds(timer, ctx, sizes, _ROUNDS, lambda: plain > 200)
        exact = exact_up_to(target, tokens, sizes, ctx, _COMPARED if plain < 100 else _COMPARED_IF_SLOW)
        return Tried(name, settings, {t.n: t.ms for t in measured.times()}, exact)

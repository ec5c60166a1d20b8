"""Which of llama.cpp's settings are fastest here: each is tried on the loaded model, and one by one kept or not.

The best kernel depends on the size of the pass (docs/benchmarks). So settings are compared by the rate of their best
pass, for a draft of usual quality. Settings that keep logits the same bits in passes of every size win unless another
is clearly faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specrun.engine.model import Model
from specrun.engine.run_options import RunOptions
from specrun.errors import LlamaError
from specrun.llama.invariance import exact_sizes
from specrun.llama_settings import LlamaSettings
from specrun.long_run import Run
from specrun.profiles.tuning_rows import TriedSettings
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes, best_rate, is_free, tokens_of
from specrun.tuning.pass_timer import TargetTimer, rounds

_SIZES = (1, 2, 4, 8, 16, 32, 64)  # tokens of the timed passes
_CTX = 600  # tokens; long enough that llama.cpp's attention kernels for long contexts are at work
_CLEARLY = 1.03  # factor by which settings must be faster than the best so far to replace them
_ROUNDS = 3
_VERY_SLOW_MS = 200.0  # time of a plain pass above which no more than the fewest rounds are made


@dataclass(frozen=True)
class Tried:
    """Settings, and what was measured with them."""

    name: str
    settings: LlamaSettings
    ms: dict[int, float]  # milliseconds of a pass, by its tokens
    exact_sizes: PassSizes  # passes of these sizes give a token the same bits

    @property
    def score(self) -> float:
        """Tokens per millisecond of the best pass, with a draft of usual quality."""
        return best_rate(ANY_SIZE, self.ms)

    @property
    def exact_score(self) -> float:
        """The same where every pass is padded to `exact_sizes`."""
        return best_rate(self.exact_sizes, self.ms)

    @property
    def is_exact(self) -> bool:
        """Whether all passes can be bit-exact at no cost."""
        return is_free(self.exact_sizes, self.ms)

    @property
    def row(self) -> TriedSettings:
        """The trial as a profile keeps it."""
        return TriedSettings(self.name, self.ms, self.exact_sizes, self.score)


def variations(n_logical: int, n_threads: int, can_repack: bool, is_split: bool) -> Iterator[tuple[str, LlamaSettings]]:
    """Names and settings to try, each on top of those that were kept before.

    n_logical: logical CPU cores. n_threads: threads of the defaults.
    can_repack: whether all weights lie in RAM, with room for a re-ordered copy.
    is_split: whether some layers lie in VRAM and some in RAM.
    """
    if is_split:
        yield "weights in RAM multiplied where they are", LlamaSettings(op_offload=False)
        yield "weights in RAM read, not mapped", LlamaSettings(load_mode="none")  # llama.cpp then pins them
    if n_logical != n_threads:
        yield f"{n_logical} threads", LlamaSettings(threads=n_logical)
        yield f"{n_logical} threads for several tokens", LlamaSettings(threads_batch=n_logical)
    # Without flash attention llama.cpp's CPU backend multiplies whole matrices, which for trees behind a long context
    # may be several times as fast.
    yield "no flash attention, K and V f32", LlamaSettings(type_k="f32", type_v="f32", flash_attn="off")
    yield "no flash attention, K and V f16", LlamaSettings(type_k="f16", type_v="f16", flash_attn="off")
    yield "K and V both f16", LlamaSettings(type_k="f16", type_v="f16", flash_attn="on")
    if can_repack:
        yield "repacked weights", LlamaSettings(repack=True)


def choose(
    options: RunOptions, candidates: Sequence[tuple[str, LlamaSettings]], text: str, run: Run
) -> tuple[LlamaSettings, list[Tried]]:
    """The fastest settings of the target, and all that were tried, the defaults first.

    Settings that the user has decided in `options` stay as they are, and with `options.exact` they are compared with
    padded passes. Passes over `text` are timed. No further candidate is tried after the run's deadline.
    """
    run.show("settings: defaults")
    best = _try("defaults", options, LlamaSettings(), text, run)
    tried = [best]
    for name, change in candidates:
        if run.is_over():
            break
        if change.over(options.settings) != options.settings.over(change):
            continue  # the user has decided otherwise
        run.show(f"settings: {name}")
        try:
            trial = _try(name, options, change.over(best.settings), text, run)
        except LlamaError:
            continue  # this model does not allow it, or there is too little memory
        tried.append(trial)
        if options.exact:
            is_better = trial.exact_score > _CLEARLY * best.exact_score
        else:
            # Exact settings that are nearly as fast as inexact ones win.
            is_better = trial.score > best.score * (1 / _CLEARLY if trial.is_exact and not best.is_exact else _CLEARLY)
        if is_better:
            best = trial
    return best.settings, tried


def _try(name: str, options: RunOptions, settings: LlamaSettings, text: str, run: Run) -> Tried:
    decided = options.settings.over(settings)
    largest = SPECEXEC.plan(max(_SIZES), 8)
    with Model(replace(options, settings=decided, plans=(OFF.plan(),), largest=largest, draft=None)) as model:
        tokens = model.llama_model.tokenize(text, add_special=False)
        target = model.engine.target
        ctx = max(8, min(_CTX, model.engine.ctx_size - max(_SIZES) - 1))
        timer = TargetTimer(target, tokens)
        timer.fill(ctx)
        timer.ms(1)
        plain_ms = timer.ms(1)
        # Where a pass takes many times longer than a plain one, larger passes cannot be the best.
        sizes = [1]
        for n in _SIZES[1:]:
            sizes.append(n)
            if timer.ms(n) > tokens_of(4 * n) * 2 * plain_ms:
                break
        times = rounds(timer, ctx, sizes, _ROUNDS, run.stage(0 if plain_ms > _VERY_SLOW_MS else math.inf)).pass_times()
        exact, _ = exact_sizes(target, tokens, max(_SIZES), quick=True)
        return Tried(name, settings, {t.n: t.ms for t in times}, exact)

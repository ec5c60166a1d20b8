"""Which of llama.cpp's settings are fastest here: each is tried on the loaded model, and one by one kept or not.

What is optimised is the time to read a prompt of PROMPT tokens and to write an answer of ANSWER tokens behind it, with
a draft of usual quality: in passes of the size that is best with these settings, from 1 token to 8 where weights lie in
RAM and to 64 where they are streamed. The time of such a pass is the mean of those behind 64 and behind 768 cells,
because the best kernel depends on the size of the pass and on the length of the text. Settings that keep logits the
same bits in passes of every size win unless another is clearly faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specrun.engine.model import Model
from specrun.engine.run_options import RunOptions
from specrun.errors import LlamaError
from specrun.llama.invariance import exact_up_to
from specrun.llama_settings import LlamaSettings
from specrun.long_run import Run
from specrun.profiles.tuning_rows import TriedSettings
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.tuning.pass_timer import PassTimer, TargetTimer, rounds

_SIZES = (1, 2, 4, 8, 16, 32, 64)  # tokens of the timed passes
_CONTEXTS = (64, 768)  # tokens; llama.cpp's attention kernels for long contexts are at work from 512 cells on
PROMPT, ANSWER = 500, 256  # tokens of the prompt that is read and of the answer that is written; chosen by hand
_FAR_BEHIND = 0.6  # share of the best size's rate below which two sizes in turn end the sizes that are timed
_ALWAYS = 4  # tokens of passes that are timed behind many cells in any case
_MAY_BE_BEST = 0.75  # share of the best size's rate behind few cells that a size needs to be timed behind many
_CLEARLY = 1.03  # factor by which settings must be faster than the best so far to replace them
_TOKENS_PER_DOUBLING = 0.62  # committed tokens that a tree of twice the nodes adds (docs/benchmarks/growth.md)
_ROUNDS = 2
_SLOW_MS = 100.0  # time of a plain pass above which fewer tokens are compared
_VERY_SLOW_MS = 200.0  # time of a plain pass above which no more than the fewest rounds are made
_COMPARED, _COMPARED_IF_SLOW = 40, 4  # tokens whose logits are compared for exactness


@dataclass(frozen=True)
class Tried:
    """Settings, and what was measured with them."""

    name: str
    settings: LlamaSettings
    ms: dict[int, float]  # milliseconds of a pass, by its tokens
    exact_up_to: int  # tokens of the largest pass whose logits are bit-exact; 1 if not even passes over two are
    prompt_ms: float = 0.0  # milliseconds to read a token of a prompt

    @property
    def score(self) -> float:
        """Answered tokens per millisecond, the time of reading the prompt included, with a draft of usual quality."""
        rate = max(_committed(n) / ms for n, ms in self.ms.items())
        return ANSWER / (PROMPT * self.prompt_ms + ANSWER / rate)

    @property
    def is_exact(self) -> bool:
        """Whether all timed passes are bit-exact."""
        return self.exact_up_to >= max(self.ms)

    @property
    def row(self) -> TriedSettings:
        """The trial as a profile keeps it."""
        return TriedSettings(self.name, self.ms, self.exact_up_to, self.score, self.prompt_ms)


def _committed(n: int) -> float:
    """Committed tokens of a pass over a tree of `n` nodes, with a draft of usual quality."""
    return 1 + _TOKENS_PER_DOUBLING * math.log2(n)


def variations(
    n_logical: int, n_threads: int, can_repack: bool, is_split: bool, exact: bool
) -> Iterator[tuple[str, LlamaSettings]]:
    """Names and settings to try, each on top of those that were kept before.

    n_logical: logical CPU cores. n_threads: threads of the defaults.
    can_repack: whether all weights lie in RAM, with room for a re-ordered copy.
    is_split: whether some layers lie in VRAM and some in RAM.
    exact: leaves out settings whose kernels are known to depend on the size of the pass.
    """
    if is_split:
        yield "weights in RAM multiplied where they are", LlamaSettings(op_offload=False)
        yield "weights in RAM read, not mapped", LlamaSettings(load_mode="none")  # llama.cpp then pins them
    # Without flash attention llama.cpp's CPU backend multiplies whole matrices, which for trees behind a long context,
    # and for reading prompts, may be several times as fast. In f32 its sums do not depend on the size of the pass for
    # some quantizations. These come first, because the time may not suffice for all.
    yield "no flash attention, K and V f32", LlamaSettings(type_k="f32", type_v="f32", flash_attn="off")
    if not exact:
        if can_repack:
            yield "repacked weights", LlamaSettings(repack=True)
        yield "no flash attention, K and V f16", LlamaSettings(type_k="f16", type_v="f16", flash_attn="off")
        yield "K and V both f16", LlamaSettings(type_k="f16", type_v="f16", flash_attn="on")
    if n_logical != n_threads:
        yield f"{n_logical} threads", LlamaSettings(threads=n_logical)
        yield f"{n_logical} threads for several tokens", LlamaSettings(threads_batch=n_logical)


def choose(
    options: RunOptions, candidates: Sequence[tuple[str, LlamaSettings]], text: str, run: Run
) -> tuple[LlamaSettings, list[Tried]]:
    """The fastest settings of the target, and all that were tried, the defaults first.

    Settings that the user has decided in `options` stay as they are, and with `options.exact` only bit-exact ones are
    taken. Passes over `text` are timed. No further candidate is tried once half of it would not end before the run's
    deadline.
    """
    run.show("settings: defaults")
    started = time.perf_counter()
    best = _try("defaults", options, LlamaSettings(), text, run)
    tried = [best]
    for name, change in candidates:
        now = time.perf_counter()
        if run.is_over() or now + 0.5 * (now - started) / len(tried) > run.deadline:
            break
        if change.over(options.settings) != options.settings.over(change):
            continue  # the user has decided otherwise
        run.show(f"settings: {name}")
        try:
            trial = _try(name, options, change.over(best.settings), text, run)
        except LlamaError:
            continue  # this model does not allow it, or there is too little memory
        tried.append(trial)
        # Exact settings that are nearly as fast as inexact ones win.
        least = 1 / _CLEARLY if trial.is_exact and not best.is_exact else _CLEARLY
        if trial.score > least * best.score and (trial.is_exact or not options.exact):
            best = trial
    return best.settings, tried


def _try(name: str, options: RunOptions, settings: LlamaSettings, text: str, run: Run) -> Tried:
    decided = options.settings.over(settings)
    largest = SPECEXEC.plan(max(_SIZES), 8)
    with Model(replace(options, settings=decided, plans=(OFF.plan(),), largest=largest, draft=None)) as model:
        tokens = model.llama_model.tokenize(text, add_special=False)
        target = model.engine.target
        longest = max(8, model.engine.ctx_size - max(_SIZES) - 1)
        contexts = [min(ctx, longest) for ctx in _CONTEXTS]
        timer = TargetTimer(target, tokens)
        timer.fill(contexts[0])
        timer.ms(1)
        sizes, plain_ms = worth_timing(timer)
        short = run.stage(0 if plain_ms > _VERY_SLOW_MS else math.inf)
        near = rounds(timer, contexts[0], sizes, _ROUNDS, short).pass_times()
        started = time.perf_counter()
        timer.fill(contexts[1])
        prompt_ms = 1e3 * (time.perf_counter() - started) / max(contexts[1] - contexts[0], 1)
        best = max(_committed(t.n) / t.ms for t in near)
        sizes = [t.n for t in near if t.n <= _ALWAYS or _committed(t.n) / t.ms > _MAY_BE_BEST * best]
        far = rounds(timer, contexts[1], sizes, _ROUNDS, short).pass_times()
        by_size = {t.n: t.ms for t in near}
        ms = {t.n: (t.ms + by_size[t.n]) / 2 for t in far}
        n_compared = _COMPARED if plain_ms < _SLOW_MS else _COMPARED_IF_SLOW
        exact = exact_up_to(target, tokens, sizes, contexts[1], n_compared)
        return Tried(name, settings, ms, exact, prompt_ms)


def worth_timing(timer: PassTimer) -> tuple[list[int], float]:
    """The sizes of passes that plans may use, and the time of a plain pass: further ones are far from the best."""
    plain_ms = timer.ms(1)
    sizes, best, n_behind = [1], 1 / plain_ms, 0
    for n in _SIZES[1:]:
        rate = _committed(n) / timer.ms(n)
        sizes.append(n)
        n_behind = n_behind + 1 if rate < _FAR_BEHIND * best else 0
        if n_behind == 2:
            break
        best = max(best, rate)
    return sizes, plain_ms

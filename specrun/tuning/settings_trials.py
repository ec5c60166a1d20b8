"""Which of llama.cpp's settings are fastest here: each is tried on the loaded model, and one by one kept or not.

What is optimised is the time to read a prompt of PROMPT tokens and to write an answer of ANSWER tokens behind it, with
a draft of usual quality: in passes of the size that is best with these settings, from 1 token to 8 where weights lie in
RAM and to 64 where they are streamed. The time of such a pass is the mean of those behind 64 and behind 768 cells,
because the best kernel depends on the size of the pass and on the length of the text. Settings with which exactness
costs nothing win unless another is clearly faster; with `--exact` all are compared with padded passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specrun.engine.default_settings import keeps_bits
from specrun.engine.run_options import RunOptions
from specrun.engine.trial import CLEARLY, best_of, is_faster
from specrun.errors import CrashError, LlamaError
from specrun.llama_settings import LlamaSettings
from specrun.long_run import Run
from specrun.tuning.settings_trial import Tried, measured, measured_apart

_BATCH = 2048  # tokens of a batch of several micro-batches, by llama.cpp's own default
_THRESHOLDS = (8, 16, 64)  # tokens from which passes copy weights in RAM to the GPU; llama.cpp's default is 32
_DEFAULTS = ("defaults", LlamaSettings())


def variations(
    n_logical: int,
    n_threads: int,
    can_repack: bool,
    is_split: bool,
    n_gpus: int,
    has_tiled: bool,
    has_threshold: bool = False,
) -> Iterator[tuple[str, LlamaSettings]]:
    """Names and settings to try, each on top of those that were kept before.

    n_logical: logical CPU cores. n_threads: threads of the defaults.
    can_repack: whether all weights lie in RAM, with room for a re-ordered copy.
    is_split: whether some layers lie in VRAM and some in RAM. n_gpus: GPUs that share the layers.
    has_threshold: whether it is open from how many tokens on passes copy weights to the GPU.
    has_tiled: whether passes must be exact and tiled kernels compute some of them.
    """
    if is_split:
        yield "weights in RAM multiplied where they are", LlamaSettings(op_offload=False)
        if has_threshold:
            for n in _THRESHOLDS:
                yield f"weights in RAM copied in passes of {n}", LlamaSettings(op_offload=True, offload_min_batch=n)
        yield "weights in RAM read, not mapped", LlamaSettings(load_mode="none")  # llama.cpp then pins them
    if n_gpus > 1:  # they then work on several micro-batches at the same time
        yield f"{_BATCH} tokens of a prompt at a time", LlamaSettings(batch_size=_BATCH)
    if has_tiled:  # one kernel for passes of all sizes makes padding needless
        yield "tiled kernels never", LlamaSettings(tiled="never", repack=False)
        yield "tiled kernels always", LlamaSettings(tiled="always", repack=False)
    # Without flash attention llama.cpp's CPU backend multiplies whole matrices, which for trees behind a long context,
    # and for reading prompts, may be several times as fast. In f32 its sums do not depend on the size of the pass for
    # some quantizations. These come first, because the time may not suffice for all.
    yield "no flash attention, K and V f32", LlamaSettings(type_k="f32", type_v="f32", flash_attn="off")
    if can_repack:
        yield "repacked weights", LlamaSettings(repack=True)
    yield "no flash attention, K and V f16", LlamaSettings(type_k="f16", type_v="f16", flash_attn="off")
    yield "K and V both f16", LlamaSettings(type_k="f16", type_v="f16", flash_attn="on")
    yield "K f16, V bf16", LlamaSettings(type_k="f16", type_v="bf16", flash_attn="on")
    if n_logical != n_threads:
        yield f"{n_logical} threads", LlamaSettings(threads=n_logical)
        yield f"{n_logical} threads for several tokens", LlamaSettings(threads_batch=n_logical)


def choose(
    options: RunOptions,
    defaults: LlamaSettings,
    candidates: Sequence[tuple[str, LlamaSettings]],
    text: str,
    run: Run,
    may_crash: bool = False,
) -> tuple[LlamaSettings, list[Tried]]:
    """The fastest settings of the target, and all that were tried, the defaults first.

    defaults: the settings of a target that nobody has tuned. candidates: names and changes of settings.

    Settings that the user has decided in `options` stay as they are, and with `options.exact` they are compared with
    padded passes. Passes over `text` are timed. Bits are compared only with `options.exact` and for types of weights
    that keep them at no cost, because for others it takes most of the time and decides nothing. Where candidates differ
    in what a process settles once, its kernels or its threshold of offloading, or may end the process, each is tried in
    a process of its own: settings with which llama.cpp crashes are named and left out.

    may_crash: whether drivers take part, which may fail with settings that llama.cpp allows.
    Raises LlamaError, as it was for the defaults, if no settings work.
    """
    is_settled_once = any(change.tiled or change.offload_min_batch for _, change in candidates)
    tried_with = measured_apart if is_settled_once or may_crash else measured
    compares = options.exact or keeps_bits(options.target)
    failures: list[LlamaError] = []

    def tried(candidate: tuple[str, LlamaSettings], best: Tried | None) -> Tried | None:
        name, change = candidate
        base = best.settings if best else defaults
        is_decided = change.over(options.settings) != options.settings.over(change)  # by the user, otherwise
        if is_decided or (candidate is not _DEFAULTS and change.over(base) == base):
            return None
        run.show(f"settings: {name}")
        try:
            return tried_with(name, options, change.over(base), compares, text, run)
        except CrashError as error:
            run.note(f"llama.cpp crashed with some settings, which are left out: {name} ({error})")
            failures.append(error)
        except LlamaError as error:  # this model does not allow it, or there is too little memory
            if candidate is _DEFAULTS:
                raise
            failures.append(error)
        return None

    def is_better(new: Tried, best: Tried) -> bool:
        if options.exact:
            return is_faster(1 / new.exact_score, 1 / best.exact_score)
        # Exact settings that are nearly as fast as inexact ones win.
        return is_faster(1 / new.score, 1 / best.score, 1 / CLEARLY if new.is_exact and not best.is_exact else CLEARLY)

    outcome = best_of([_DEFAULTS, *candidates], tried, is_better, run)
    if outcome.untried:
        run.note(
            f"time for {len(outcome.tried) - 1} of {len(candidates)} settings besides the defaults; "
            "`specrun tune --thorough` tries all"
        )
    if not outcome.best:
        raise failures[0]
    return outcome.best.settings, outcome.tried

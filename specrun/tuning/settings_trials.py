"""Which of llama.cpp's settings are fastest here: each is tried on the loaded model, and one by one kept or not.

What is optimised is the time to read a prompt of PROMPT tokens and to write an answer of ANSWER tokens behind it, with
a draft of usual quality: in passes of the size that is best with these settings, from 1 token to 8 where weights lie in
RAM and to 64 where they are streamed. The time of such a pass is the mean of those behind 64 and behind 768 cells,
because the best kernel depends on the size of the pass and on the length of the text. Settings with which exactness
costs nothing win unless another is clearly faster; with `--exact` all are compared with padded passes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from specrun.engine.default_settings import keeps_bits
from specrun.engine.run_options import RunOptions
from specrun.errors import CrashError, LlamaError
from specrun.llama_settings import LlamaSettings
from specrun.long_run import Run
from specrun.tuning.settings_trial import Tried, measured, measured_apart

_BATCH = 2048  # tokens of a batch of several micro-batches, by llama.cpp's own default
_THRESHOLDS = (8, 16, 64)  # tokens from which passes copy weights in RAM to the GPU; llama.cpp's default is 32
_CLEARLY = 1.03  # factor by which settings must be faster than the best so far to replace them


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
    padded passes. Passes over `text` are timed. No further candidate is tried once half of it would not end before the
    run's deadline. Bits are compared only with `options.exact` and for types of weights that keep them at no cost,
    because for others it takes most of the time and decides nothing. Where candidates differ in what a process settles
    once, its kernels or its threshold of offloading, or may end the process, each is tried in a process of its own:
    settings with which llama.cpp crashes are named and left out.

    may_crash: whether drivers take part, which may fail with settings that llama.cpp allows.
    Raises LlamaError, as it was for the defaults, if no settings work.
    """
    is_settled_once = any(change.tiled or change.offload_min_batch for _, change in candidates)
    tried_with = measured_apart if is_settled_once or may_crash else measured
    started = time.perf_counter()
    compares = options.exact or keeps_bits(options.target)
    best: Tried | None = None
    failure: LlamaError | None = None
    tried: list[Tried] = []
    for i, (name, change) in enumerate([("defaults", LlamaSettings()), *candidates]):
        now = time.perf_counter()
        if best and (run.is_over() or now + 0.5 * (now - started) / len(tried) > run.deadline):
            run.note(
                f"time for {len(tried) - 1} of {len(candidates)} settings besides the defaults; "
                "`specrun tune --thorough` tries all"
            )
            break
        if change.over(options.settings) != options.settings.over(change):
            continue  # the user has decided otherwise
        base = best.settings if best else defaults
        if i and change.over(base) == base:
            continue
        run.show(f"settings: {name}")
        try:
            trial = tried_with(name, options, change.over(base), compares, text, run)
        except CrashError as error:
            run.note(f"llama.cpp crashed with some settings, which are left out: {name} ({error})")
            failure = failure or error
            continue
        except LlamaError as error:
            if not i:
                raise
            failure = failure or error
            continue  # this model does not allow it, or there is too little memory
        tried.append(trial)
        if not best:
            best = trial
            continue
        if options.exact:
            is_better = trial.exact_score > _CLEARLY * best.exact_score
        else:
            # Exact settings that are nearly as fast as inexact ones win.
            is_better = trial.score > best.score * (1 / _CLEARLY if trial.is_exact and not best.is_exact else _CLEARLY)
        if is_better:
            best = trial
    if not best:
        assert failure
        raise failure
    return best.settings, tried

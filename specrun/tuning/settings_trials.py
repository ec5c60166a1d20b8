"""Which of llama.cpp's settings are fastest here: each is tried on the loaded model, and one by one kept or not.

What is optimised is the time to read a prompt of PROMPT tokens and to write an answer of ANSWER tokens after it, with
a draft of usual quality: in passes of the size that is best with these settings, from 1 token to 8 where weights lie in
RAM and to 128 where they are streamed or copied to a GPU. They are timed in the middle of the answer, because the best
kernel depends on the size of the pass and on the length of the text. Settings with which exactness costs nothing win
unless another is clearly faster; with `--exact` all are compared with padded passes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from specrun import clock
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import CrashError, LlamaError
from specrun.llama.invariance import exact_sizes, holds
from specrun.llama_settings import LlamaSettings
from specrun.loading.default_settings import keeps_bits
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.loading.trial import ANSWER, CLEARLY, PROMPT, best_of, is_faster, is_time
from specrun.long_run import Run
from specrun.processes import child_process
from specrun.profiles.codec import converter
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY, PassSizes, best_rate, tokens_of
from specrun.tuning.pass_timer import PassTimer, TargetTimer, rounds

_BATCH = 2048  # tokens of a batch of several micro-batches, by llama.cpp's own default
_THRESHOLDS = (8, 16, 64)  # tokens from which passes copy weights in RAM to the GPU; llama.cpp's default is 32
_DEFAULTS = ("defaults", LlamaSettings())
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)  # tokens of the timed passes
_FEW_SIZES = (1, 8, 64)  # where passes are slow
_FAR_BEHIND = 0.6  # after two sizes in a row with less than this share of the best size's rate, no larger size is timed
_CTX = PROMPT + ANSWER // 2  # tokens in the cache before the timed passes
_ROUNDS = 2
_LONGEST = 3600.0  # seconds; stands for no deadline in JSON
_VERY_SLOW_MS = 200.0  # time of a plain pass above which no more than the fewest rounds are made
_LEAST_PASSES = 25  # plain passes that a trial takes at least, besides reading the prompt
_READING = 32  # tokens of a pass whose time tells about how long a prompt takes
NOT_TRIED = "llama.cpp's settings were not tried, because passes take long; `specrun tune --thorough` tries them"


class _TooSlowError(Exception):
    """Two trials, without which there is nothing to compare, would take too long."""


def variations(
    n_logical: int,
    n_threads: int,
    can_repack: bool,
    is_split: bool,
    n_gpus: int,
    has_tiled: bool,
    knows_attention: bool,
    has_threshold: bool = False,
) -> Iterator[tuple[str, LlamaSettings]]:
    """Names and settings to try, each on top of those that were kept before.

    n_logical: hardware threads that may be used. n_threads: threads of the defaults.
    can_repack: whether all weights lie in RAM, with room for a re-ordered copy.
    is_split: whether some layers lie in VRAM and some in RAM. n_gpus: GPUs that share the layers; 0 if none holds any.
    has_threshold: whether it is open from how many tokens on passes copy weights to the GPU.
    has_tiled: whether passes must be exact and tiled kernels compute some of them.
    knows_attention: whether the defaults have the fastest kernels for attention, and bits do not count.
    """
    if is_split:
        # How fast weights are copied decides from how many tokens on that pays. By default they are read already.
        yield "weights in RAM read, not mapped", LlamaSettings(load_mode="none")
        yield "weights in RAM multiplied where they are", LlamaSettings(op_offload=False)
        if has_threshold:
            for n in _THRESHOLDS:
                yield f"weights in RAM copied in passes of {n}", LlamaSettings(op_offload=True, offload_min_batch=n)
        yield "weights in RAM repacked", LlamaSettings(repack=True)  # they are then never copied
    if n_gpus > 1:  # they then work on several micro-batches at the same time
        yield f"{_BATCH} tokens of a prompt at a time", LlamaSettings(batch_size=_BATCH)
    if has_tiled:  # one kernel for passes of all sizes makes padding needless
        yield "tiled kernels never", LlamaSettings(tiled="never", repack=False)
        yield "tiled kernels always", LlamaSettings(tiled="always", repack=False)
    # Without flash attention llama.cpp's CPU backend multiplies whole matrices, which for trees after a long context,
    # and for reading prompts, may be several times as fast. In f32 its sums do not depend on the size of the pass for
    # some quantizations. These come first, because the time may not suffice for all.
    if not knows_attention:
        yield "no flash attention, K and V f32", LlamaSettings(type_k="f32", type_v="f32", flash_attn="off")
    if can_repack:
        yield "repacked weights", LlamaSettings(repack=True)
    if not knows_attention:
        yield "no flash attention, K and V f16", LlamaSettings(type_k="f16", type_v="f16", flash_attn="off")
    if not knows_attention and not n_gpus:  # on a GPU the first is the default, and V would be converted in every pass
        yield "K and V both f16", LlamaSettings(type_k="f16", type_v="f16", flash_attn="on")
        yield "K f16, V bf16", LlamaSettings(type_k="f16", type_v="bf16", flash_attn="on")
    if n_logical != n_threads:
        yield f"{n_logical} threads", LlamaSettings(threads=n_logical)
        yield f"{n_logical} threads for several tokens", LlamaSettings(threads_batch=n_logical)


def is_free(sizes: PassSizes, ms: Mapping[int, float]) -> bool:
    """Whether padding costs plain decoding next to nothing and bounds no tree. ms: milliseconds of a pass by size."""
    least = min((ms[n] for n in ms if n in sizes), default=math.inf)
    return sizes.most is None and not sizes.in_order and not is_faster(ms[1], least)


def bits_count(options: RunOptions) -> bool:
    """Whether bits are compared: for types of weights that keep them at no cost, and for users who ask for them."""
    return options.exact or keeps_bits(GgufFile.read(options.target))


def choose(
    options: RunOptions,
    defaults: LlamaSettings,
    candidates: Sequence[tuple[str, LlamaSettings]],
    text: str,
    run: Run,
    may_crash: bool = False,
) -> tuple[LlamaSettings, list[Tried]]:
    """The fastest settings of the target, and all that were tried, the defaults first; none if no candidate is open.

    defaults: the settings of a target that nobody has tuned. candidates: names and changes of settings.
    may_crash: whether drivers take part, which may fail with settings that llama.cpp allows.

    Settings that the user has decided in `options` stay as they are, and with `options.exact` they are compared with
    padded passes. Passes over `text` are timed. Bits are compared only where they count, because elsewhere it takes
    most of the time and decides nothing. Where candidates differ in what a process settles once, its kernels or its
    threshold of offloading, or may end the process, each is tried in a process of its own: settings with which
    llama.cpp crashes are named and left out. Raises LlamaError, as it was for the defaults, if no settings work.
    """
    is_settled_once = any(change.tiled or change.offload_min_batch for _, change in candidates)
    tried_with = measured_apart if is_settled_once or may_crash else measured
    compares = bits_count(options)
    failures: list[LlamaError] = []

    def tried(candidate: tuple[str, LlamaSettings], best: Tried | None) -> Tried | None:
        name, change = candidate
        base = best.settings if best else defaults
        is_first = candidate is _DEFAULTS
        if not is_first and not _is_open(change, base, options.settings):
            return None
        run.show(f"settings: {name}")
        try:
            trial_run = run if is_first else run.stage(math.inf)  # `best_of` knows how long the others take
            found = tried_with(name, options, change.over(base), compares, text, trial_run)
            if is_first and found is None:
                raise _TooSlowError
            return found
        except LlamaError as error:
            if isinstance(error, CrashError):
                run.note(f"llama.cpp crashed with some settings, which are left out: {name} ({error})")
            elif is_first:  # this model does not allow it, or there is too little memory
                raise
            failures.append(error)
        return None

    if not any(_is_open(change, defaults, options.settings) for _, change in candidates):
        return defaults, []
    try:
        outcome = best_of([_DEFAULTS, *candidates], tried, partial(_is_better, exact=options.exact), run)
    except _TooSlowError:
        run.note(NOT_TRIED)
        return defaults, []
    if outcome.untried:
        run.note(
            f"time for {len(outcome.tried) - 1} of {len(candidates)} settings besides the defaults; "
            "`specrun tune --thorough` tries all"
        )
    if not outcome.best:
        raise failures[0]
    return outcome.best.settings, outcome.tried


def _is_open(change: LlamaSettings, base: LlamaSettings, by_user: LlamaSettings) -> bool:
    """Whether the change makes settings other than `base`, and the user has not decided otherwise."""
    return change.over(by_user) == by_user.over(change) and change.over(base) != base


@dataclass(frozen=True)
class Tried:
    """Settings, and what was measured with them."""

    name: str
    settings: LlamaSettings
    ms: dict[int, float]  # milliseconds of a pass, by its tokens
    # Passes of these sizes give a token the same bits, and the least of them was timed; None if that was not compared.
    exact_sizes: PassSizes | None
    prompt_ms: float = 0.0  # milliseconds to read a token of a prompt

    def score(self, exact: bool = False) -> float:
        """Answered tokens per millisecond, the time of reading the prompt included, with a draft of usual quality.

        exact: where every pass is padded to `exact_sizes`, which must be known.
        """
        padding = self.exact_sizes if exact else ANY_SIZE
        assert padding
        return ANSWER / (PROMPT * self.prompt_ms + ANSWER / best_rate(padding, self.ms))

    @property
    def is_exact(self) -> bool:
        """Whether all passes are known to be bit-exact at no cost."""
        return self.exact_sizes is not None and is_free(self.exact_sizes, self.ms)


def _is_better(new: Tried, best: Tried, exact: bool) -> bool:
    """exact: whether passes are padded."""
    # Exact settings that are nearly as fast as inexact ones win.
    is_preferred = not exact and new.is_exact and not best.is_exact
    return is_faster(1 / new.score(exact), 1 / best.score(exact), 1 / CLEARLY if is_preferred else CLEARLY)


def measured(
    name: str, options: RunOptions, settings: LlamaSettings, compares: bool, text: str, run: Run
) -> Tried | None:
    """Load the target and try `settings` where `options` decide nothing; passes over `text` are timed.

    compares: whether it is measured which sizes of passes give a token the same bits. Returns None if the run's
    deadline leaves no time for a second trial. Raises LlamaError if the model does not allow the settings, or there is
    too little memory.
    """
    decided = options.settings.over(settings)
    largest = SPECEXEC.plan(max(_SIZES), 8)
    # No pass is padded here; which sizes are exact is measured below.
    plain = replace(options, settings=decided, plans=(OFF.plan(),), largest=largest, draft=None, exact=False)
    with Model(plain) as model:
        tokens = model.llama_model.tokenize(text, add_special=False)
        target = model.engine.target
        ctx = max(8, min(_CTX, model.engine.ctx_size - max(_SIZES) - 1))
        timer = TargetTimer(target, tokens)
        timer.fill(0)
        timer.ms(1)
        plain_ms = timer.ms(1)
        two_trials = 2 * _LEAST_PASSES * plain_ms / 1e3
        if not is_time(two_trials, run):
            return None
        n = min(_READING, target.room())
        if not is_time(two_trials + 2 * ctx / n * timer.ms(n) / 1e3, run):
            return None
        prompt_ms = timer.fill(ctx) / ctx
        sizes, plain_ms = worth_timing(timer, target.room())
        short = run.stage(0 if plain_ms > _VERY_SLOW_MS else math.inf)
        ms = {t.n: t.ms for t in rounds(timer, ctx, sizes, _ROUNDS, short).pass_times()}
        exact: PassSizes | None = None
        if compares and options.exact:
            exact = exact_sizes(target, tokens, max(_SIZES), quick=True)[0]
        elif compares:  # a class that costs something is of no interest
            exact = ANY_SIZE if holds(ANY_SIZE, target, tokens, max(_SIZES)) else PLAIN_ONLY
        if exact and exact.least not in ms and exact.least <= target.room():
            timer.fill(ctx)
            ms[exact.least] = timer.ms(exact.least)
        return Tried(name, settings, dict(sorted(ms.items())), exact, prompt_ms)


def worth_timing(timer: PassTimer, most: int) -> tuple[list[int], float]:
    """The sizes of passes that plans may use, and the time of a plain pass: further ones are far from the best.

    most: tokens of the largest pass that the cache allows.
    """
    plain_ms = timer.ms(1)
    sizes, best, n_behind = [1], 1 / plain_ms, 0
    steps = _FEW_SIZES if plain_ms > _VERY_SLOW_MS else _SIZES
    for n in [size for size in steps[1:] if size <= most]:
        rate = tokens_of(n) / timer.ms(n)
        sizes.append(n)
        n_behind = n_behind + 1 if rate < _FAR_BEHIND * best else 0
        if n_behind == 2:
            break
        best = max(best, rate)
    return sizes, plain_ms


def measured_apart(
    name: str, options: RunOptions, settings: LlamaSettings, compares: bool, text: str, run: Run
) -> Tried | None:
    """`measured` in a process of its own, which the settings may change for good."""
    debug = logging.getLogger("specrun.llama").isEnabledFor(logging.DEBUG)
    seconds = min(run.deadline - clock.now(), _LONGEST)
    given = converter().unstructure({"decided": options.settings, "settings": settings})
    request = {"name": name, "compares": compares, "text": text, "seconds": seconds, **given}
    request |= {"target": str(options.target), "ctx_size": options.ctx_size}

    def wait() -> None:
        run.is_over()  # raises KeyboardInterrupt after Ctrl-C

    trial = child_process.answer(__name__, request, "a trial of settings", wait, debug)
    return converter().structure(trial, Tried) if trial else None


def serve(request: str) -> None:
    """Print what `measured` gives for the arguments in `request`, which is JSON, or an `error`."""

    def work(given: dict[str, Any]) -> Any:
        settings, decided = (converter().structure(given[key], LlamaSettings) for key in ("settings", "decided"))
        options = RunOptions(Path(given["target"]), None, (OFF.plan(),), ctx_size=given["ctx_size"], settings=decided)
        run = Run().stage(given["seconds"])
        trial = measured(given["name"], options, settings, given["compares"], given["text"], run)
        return converter().unstructure(trial) if trial else {}

    child_process.reply(request, work)

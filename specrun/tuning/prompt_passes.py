"""How many tokens of a prompt are computed at once (`--ubatch-size`): more tokens read the weights fewer times.

The same text is read in passes of one size and of twice as many tokens, beginning with llama.cpp's default. A larger
size is kept as long as it is clearly faster.

Where a GPU holds a part of the layers, its memory is full, and larger passes need some of it for their buffers. One or
two layers leave it for them if a prompt of _READ tokens with a plain answer of ANSWER tokens is then clearly faster.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from specrun import clock
from specrun.catalog.gguf_file import GgufFile
from specrun.engine.kernel_trials import ANSWER
from specrun.engine.model import Model
from specrun.engine.placing import placement_request
from specrun.engine.run_options import RunOptions, context_length
from specrun.engine.trial import CLEARLY_AT_ONCE, is_faster, is_time
from specrun.errors import LlamaError
from specrun.hardware.device import Device
from specrun.hardware.placement import Placement, place
from specrun.llama_settings import DEFAULT_UBATCH, LlamaSettings
from specrun.long_run import Run
from specrun.speculation.method import OFF
from specrun.tuning.pass_timer import TargetTimer, repeated

_SIZES = (DEFAULT_UBATCH, 2 * DEFAULT_UBATCH, 4 * DEFAULT_UBATCH)  # tokens of the passes that are compared
_SMALL = 32  # tokens of a pass whose time tells about how long a prompt takes
_MOST_TRADED = 2  # layers that may leave VRAM for the buffers of larger passes
_READ = 2048  # tokens of the prompt by which that is judged; chosen by hand
_MOST_OF_RAM = 0.05  # share of the RAM that larger buffers may take from the file cache of streamed weights
_NO_TIME = (
    "larger passes over a prompt (--ubatch-size) were not timed, because they take long; "
    "`specrun tune --thorough` takes more time"
)


def sizes_that_fit(options: RunOptions, settings: LlamaSettings, gpus: Sequence[Device]) -> list[int]:
    """The sizes of passes over a prompt with which all layers stay where the default size lets them be.

    Streamed weights lose a part of the file cache to larger compute buffers, which must be small.
    settings: of the target, which were chosen before, for what is not decided in `options`.
    """

    def fits(n: int) -> bool:
        other = _placed(options, settings, gpus, n)
        places = [(p.layer_gpus, p.n_cpu_moe, p.draft_in_vram, p.regime, p.can_repack) for p in (usual, other)]
        more = other.ram.used_bytes - usual.ram.used_bytes
        is_small = usual.regime != "streamed" or more <= _MOST_OF_RAM * usual.request.ram_bytes
        return places[0] == places[1] and is_small

    usual = _placed(options, settings, gpus, _SIZES[0])
    return list(itertools.takewhile(fits, _SIZES))


def _placed(options: RunOptions, settings: LlamaSettings, gpus: Sequence[Device], n: int) -> Placement:
    """Where everything lies with passes of `n` tokens over a prompt. The other arguments are those of the callers."""
    of_size = LlamaSettings(ubatch_size=n).over(options.settings.over(settings))
    return place(placement_request(replace(options, settings=of_size), gpus))


def trades(options: RunOptions, settings: LlamaSettings, gpus: Sequence[Device]) -> list[LlamaSettings]:
    """The settings of the target as they are and with passes of twice as many tokens, both with its layers' places.

    Empty if larger passes take the place of more than two layers, or of the experts of as many, or of anything else in
    VRAM, or of nothing. settings: of the target, chosen before, for what is not decided in `options`.
    """
    n = settings.ubatch_size or DEFAULT_UBATCH
    ctx_size = context_length(options.ctx_size, GgufFile.read(options.target).n_ctx_train)
    if 2 * n > _SIZES[-1] or ctx_size <= _SMALL + _READ + 1:
        return []
    usual, larger = (_placed(options, settings, gpus, size) for size in (n, 2 * n))
    n_moved = usual.n_gpu_layers - larger.n_gpu_layers + larger.n_cpu_moe - usual.n_cpu_moe
    is_alike = usual.regime == larger.regime == "partly in VRAM" and usual.draft_in_vram == larger.draft_in_vram
    if not is_alike or not 0 < n_moved <= _MOST_TRADED:
        return []
    return [placed.request.settings.over(placed.settings) for placed in (usual, larger)]


def trade(
    options: RunOptions, candidates: Sequence[LlamaSettings], text: str, run: Run
) -> tuple[int, dict[int, float]]:
    """The tokens of a pass to take, and the milliseconds to read a token by the tokens of a pass, as far as measured.

    candidates: as `trades` returns them, two.
    """
    run.show("settings: larger passes over a prompt in place of layers in VRAM")
    usual, larger = (candidate.prompt_pass for candidate in candidates)
    started = clock.now()
    if run.is_over():
        run.note(_NO_TIME)
        return usual, {}
    before = _read_and_written(options, candidates[0], text)
    if not is_time(clock.now() - started, run):
        run.note(_NO_TIME)
        return usual, {usual: before[0]}
    try:
        after = _read_and_written(options, candidates[1], text)
    except LlamaError as error:  # there is less memory than was planned
        run.note(f"passes of {larger} tokens over a prompt were not timed: {error}")
        return usual, {usual: before[0]}
    return (larger if pays(before, after) else usual), {usual: before[0], larger: after[0]}


def pays(before: tuple[float, float], after: tuple[float, float]) -> bool:
    """Whether a long prompt with a plain answer takes clearly less time after a trade than before.

    Both: milliseconds to read a token of a prompt, and those of a plain pass.
    """
    old, new = (_READ * prompt_ms + ANSWER * plain_ms for prompt_ms, plain_ms in (before, after))
    return is_faster(new, old, CLEARLY_AT_ONCE)


def _read_and_written(options: RunOptions, settings: LlamaSettings, text: str) -> tuple[float, float]:
    """Milliseconds to read a token of a prompt, and those of a plain pass behind it. settings: of the target, all."""
    with Model(replace(options, settings=settings, plans=(OFF.plan(),), draft=None, exact=False)) as model:
        timer = TargetTimer(model.engine.target, model.llama_model.tokenize(text, add_special=False))
        timer.fill(_SMALL)
        timer.ms(1)  # memory is touched for the first time
        started = clock.now()
        timer.fill(_SMALL + _READ)
        prompt_ms = (clock.now() - started) * 1e3 / _READ
        return prompt_ms, statistics.median(timer.ms(1) for _ in range(3))


def may_gain(plain_ms: float, prompt_ms: float) -> bool:
    """Whether larger passes may be clearly faster, for dense weights that the CPU computes with.

    A plain pass reads all weights, so a pass that is saved saves no more than its time.
    plain_ms: milliseconds of a plain pass. prompt_ms: milliseconds to read a token of a prompt.
    """
    return plain_ms > (CLEARLY_AT_ONCE - 1) * DEFAULT_UBATCH * prompt_ms


def choose(
    options: RunOptions, settings: LlamaSettings, sizes: Sequence[int], is_bounded: bool, text: str, run: Run
) -> tuple[LlamaSettings, dict[int, float]]:
    """The settings with the best of the sizes, and the milliseconds to read a token by size, as far as measured.

    settings: of the target, chosen before. sizes: ascending, each twice the one before; the first is the default.
    is_bounded: whether a pass that is saved saves no more than a plain pass takes (`may_gain`).
    """
    decided = LlamaSettings(ubatch_size=sizes[-1]).over(options.settings.over(settings))
    run.show("settings: tokens of a pass over a prompt")
    with Model(replace(options, settings=decided, plans=(OFF.plan(),), draft=None, exact=False)) as model:
        target, tokens = model.engine.target, model.llama_model.tokenize(text, add_special=False)

        def pass_ms(start: int, n: int) -> float:
            target.set_prompt(repeated(tokens, start + 1))
            started = clock.now()
            target.set_prompt(repeated(tokens, start + n + 1))
            return (clock.now() - started) * 1e3

        best, ms = compare(pass_ms, [n for n in sizes if n < model.engine.ctx_size], is_bounded, run)
    return (settings if best == DEFAULT_UBATCH else replace(settings, ubatch_size=best)), ms


def compare(
    pass_ms: Callable[[int, int], float], sizes: Sequence[int], is_bounded: bool, run: Run
) -> tuple[int, dict[int, float]]:
    """The size to take, and the milliseconds to read a token by the tokens of a pass, as far as was measured.

    A size is timed only if half of it was clearly faster than a quarter. The same text is read in passes of either
    size, because tokens behind a longer text take longer.
    pass_ms: milliseconds of one pass over so many tokens (the second argument) of a prompt behind its first ones (the
    first argument). sizes, is_bounded: see `choose`.
    """
    ms = dict[int, float]()
    first = pass_ms(0, 1)  # memory is touched for the first time
    if not is_time(2 * first / 1e3, run):
        run.note(_NO_TIME)
        return DEFAULT_UBATCH, ms
    plain = pass_ms(0, 1)
    each = plain / DEFAULT_UBATCH + max(pass_ms(0, _SMALL) - plain, 0.0) / (_SMALL - 1)
    if is_bounded and not may_gain(plain, each):
        return DEFAULT_UBATCH, ms

    best = DEFAULT_UBATCH
    for n in sizes[1:]:
        half = n // 2
        if not is_time((1.5 * n * ms[half] if half in ms else 2 * n * each) / 1e3, run):
            run.note(_NO_TIME)
            break
        run.show(f"settings: passes of {n} tokens over a prompt")
        halves_ms = (half * ms[half] if half in ms else pass_ms(0, half)) + pass_ms(half, half)
        whole_ms = pass_ms(0, n)
        ms.setdefault(half, halves_ms / n)
        ms[n] = whole_ms / n
        if not is_faster(whole_ms, halves_ms, CLEARLY_AT_ONCE):
            break
        best = n
    return best, ms

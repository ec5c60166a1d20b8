"""How many tokens of a prompt are computed at once (`--ubatch-size`): more tokens read the weights fewer times.

A prompt is read in passes of llama.cpp's default, of twice and of four times as many tokens, with the layers where they
then lie: where a GPU holds a part of them its memory is full, and larger passes need some of it for their buffers. A
larger size is taken if the prompt, with what an answer after it then takes longer, is clearly faster.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specrun.errors import LlamaError
from specrun.hardware.placement import Placement
from specrun.llama_settings import DEFAULT_UBATCH, LlamaSettings
from specrun.loading.model import Model
from specrun.loading.placing import Here, plan_load
from specrun.loading.run_options import RunOptions, context_length
from specrun.loading.trial import ANSWER, CLEARLY_AT_ONCE, best_of, is_faster, is_time
from specrun.long_run import Run
from specrun.speculation.method import OFF
from specrun.tuning.pass_timer import TargetTimer

_SIZES = (DEFAULT_UBATCH, 2 * DEFAULT_UBATCH, 4 * DEFAULT_UBATCH)  # tokens of the passes that are compared
_SMALL = 32  # tokens of a pass whose time tells about how long a prompt takes
_PLAIN = 3  # plain passes that are timed
_MOST_MOVED = 2  # layers, or experts of as many, that may leave VRAM for the buffers of larger passes
_MOST_OF_RAM = 0.05  # share of the RAM that larger buffers may take from the file cache of streamed weights
_NO_TIME = (
    "larger passes over a prompt (--ubatch-size) were not timed, because they take long; "
    "`specrun tune --thorough` takes more time"
)


@dataclass(frozen=True)
class ReadPrompt:
    """What was measured with passes of `n` tokens over a prompt of `n_tokens`."""

    n: int
    n_tokens: int
    token_ms: float  # milliseconds to read a token
    plain_ms: float  # of a plain pass after it


def sizes_that_fit(options: RunOptions, settings: LlamaSettings, here: Here) -> list[int]:
    """The sizes of passes over a prompt with which the draft and all but a few layers stay where the default size lets
    them be. Streamed weights lose a part of the file cache to larger compute buffers, which must be small.

    settings: of the target, which were chosen before, for what is not decided in `options`.
    """

    def placed(n: int) -> Placement:
        of_size = LlamaSettings(ubatch_size=n).over(options.settings.over(settings))
        return plan_load(replace(options, settings=of_size), here).placement

    def fits(n: int) -> bool:
        other = placed(n)
        names = ("draft_in_vram", "regime", "can_repack")
        is_alike = all(getattr(usual, name) == getattr(other, name) for name in names)
        n_moved = usual.n_gpu_layers - other.n_gpu_layers + other.n_cpu_moe - usual.n_cpu_moe
        more = other.ram.used_bytes - usual.ram.used_bytes
        is_small = usual.regime != "streamed" or more <= _MOST_OF_RAM * usual.request.ram_bytes
        return is_alike and n_moved <= _MOST_MOVED and is_small

    usual = placed(_SIZES[0])
    n_ctx = context_length(options.ctx_size, here.target.n_ctx_train)
    return [n for n in itertools.takewhile(fits, _SIZES) if n + 1 < n_ctx]


def may_gain(plain_ms: float, prompt_ms: float) -> bool:
    """Whether larger passes may be clearly faster, for dense weights that the CPU computes with.

    A plain pass reads all weights, so a pass that is saved saves no more than its time.
    plain_ms: milliseconds of a plain pass. prompt_ms: milliseconds to read a token of a prompt.
    """
    return plain_ms > (CLEARLY_AT_ONCE - 1) * DEFAULT_UBATCH * prompt_ms


def pays(new: ReadPrompt, old: ReadPrompt) -> bool:
    """Whether the prompt takes clearly less time, with what a plain answer after it takes longer."""
    more = max(new.plain_ms - old.plain_ms, 0.0)
    return is_faster(new.n_tokens * new.token_ms + ANSWER * more, old.n_tokens * old.token_ms, CLEARLY_AT_ONCE)


def choose(
    options: RunOptions, settings: LlamaSettings, sizes: Sequence[int], is_bounded: bool, text: str, run: Run
) -> tuple[LlamaSettings, dict[int, float]]:
    """The settings with the best of the sizes, and the milliseconds to read a token by size, as far as measured.

    A size is timed only if half of it was clearly faster than a quarter.
    settings: of the target, chosen before. sizes: ascending, each twice the one before; the first is the default.
    is_bounded: whether a pass that is saved saves no more than a plain pass takes (`may_gain`).
    """

    def read(n: int, best: ReadPrompt | None) -> ReadPrompt | None:
        if best.n != n // 2 if best else n != sizes[0]:
            return None
        run.show(f"settings: passes of {n} tokens over a prompt")
        decided = LlamaSettings(ubatch_size=n).over(options.settings.over(settings))
        try:
            with Model(replace(options, settings=decided, plans=(OFF.plan(),), draft=None, exact=False)) as model:
                return timed(TargetTimer(model.engine.target, model.llama_model.tokenize(text, add_special=False)), n)
        except LlamaError as error:  # there is less memory than was planned
            run.note(f"passes of {n} tokens over a prompt were not timed: {error}")
            return None

    def timed(timer: TargetTimer, n: int) -> ReadPrompt | None:
        timer.fill(0)
        first = timer.ms(1)  # memory is touched for the first time
        if not is_time(_PLAIN * first / 1e3, run):
            run.note(_NO_TIME)
            return None
        plain_ms = timer.ms(1)
        each = plain_ms / n + max(timer.fill(_SMALL) - plain_ms, 0.0) / (_SMALL - 1)
        if is_bounded and not may_gain(plain_ms, each):
            return None
        if not is_time(n_tokens * each / 1e3, run):
            run.note(_NO_TIME)
            return None
        timer.target.reset()
        token_ms = timer.fill(n_tokens) / n_tokens
        return ReadPrompt(n, n_tokens, token_ms, statistics.median(timer.ms(1) for _ in range(_PLAIN)))

    n_tokens = sizes[-1]
    found = best_of(sizes, read, pays)
    ms = {one.n: one.token_ms for one in found.tried}
    if found.best and found.best.n != DEFAULT_UBATCH:
        settings = replace(settings, ubatch_size=found.best.n)
    return settings, ms

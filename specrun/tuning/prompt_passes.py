"""How many tokens of a prompt are computed at once (`--ubatch-size`): more tokens read the weights fewer times.

The same text is read in passes of one size and of twice as many tokens, beginning with llama.cpp's default. A larger
size is kept as long as it is clearly faster.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specrun.engine.model import Model
from specrun.engine.placing import placement_request
from specrun.engine.run_options import RunOptions
from specrun.hardware.device import Device
from specrun.hardware.placement import Placement, place
from specrun.llama import TargetContext
from specrun.llama_settings import DEFAULT_UBATCH, LlamaSettings
from specrun.long_run import Run
from specrun.speculation.method import OFF
from specrun.tuning.pass_timer import repeated

_SIZES = (DEFAULT_UBATCH, 2 * DEFAULT_UBATCH, 4 * DEFAULT_UBATCH)  # tokens of the passes that are compared
_CLEARLY = 1.05  # factor by which larger passes must be faster: each is timed once
_SMALL = 32  # tokens of a pass whose time tells about how long a prompt takes
_MOST_OF_RAM = 0.05  # share of the RAM that larger buffers may take from the file cache of streamed weights


class PromptTimer(Protocol):
    """Times the reading of a prompt."""

    def ms(self, start: int, n: int) -> float:
        """Milliseconds of one pass over `n` tokens of a prompt behind its first `start` ones."""
        ...


@dataclass
class PromptReader:
    """Times one loaded target, whose settings must allow passes of the largest size. tokens: repeated if too short."""

    target: TargetContext
    tokens: Sequence[int]

    def ms(self, start: int, n: int) -> float:
        self.target.set_prompt(repeated(self.tokens, start + 1))
        started = time.perf_counter()
        self.target.set_prompt(repeated(self.tokens, start + n + 1))
        return (time.perf_counter() - started) * 1e3


def sizes_that_fit(options: RunOptions, settings: LlamaSettings, gpus: Sequence[Device]) -> list[int]:
    """The sizes of passes over a prompt with which all layers stay where the default size lets them be.

    Streamed weights lose a part of the file cache to larger compute buffers, which must be small.
    settings: of the target, which were chosen before, for what is not decided in `options`.
    """
    decided = options.settings.over(settings)

    def placed(n: int) -> Placement:
        of_size = replace(options, settings=LlamaSettings(ubatch_size=n).over(decided))
        return place(placement_request(of_size, gpus))

    def fits(n: int) -> bool:
        other = placed(n)
        places = [(p.layer_gpus, p.n_cpu_moe, p.draft_in_vram, p.regime, p.can_repack) for p in (usual, other)]
        more = other.ram.used_bytes - usual.ram.used_bytes
        is_small = usual.regime != "streamed" or more <= _MOST_OF_RAM * usual.request.ram_bytes
        return places[0] == places[1] and is_small

    usual = placed(_SIZES[0])
    return list(itertools.takewhile(fits, _SIZES))


def may_gain(plain_ms: float, prompt_ms: float) -> bool:
    """Whether larger passes may be clearly faster, for dense weights that the CPU computes with.

    A plain pass reads all weights, so a pass that is saved saves no more than its time.
    plain_ms: milliseconds of a plain pass. prompt_ms: milliseconds to read a token of a prompt.
    """
    return plain_ms > (_CLEARLY - 1) * DEFAULT_UBATCH * prompt_ms


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
        fitting = [n for n in sizes if n < model.engine.ctx_size]
        reader = PromptReader(model.engine.target, model.llama_model.tokenize(text, add_special=False))
        best, ms = compare(reader, fitting, is_bounded, run)
    return (settings if best == DEFAULT_UBATCH else replace(settings, ubatch_size=best)), ms


def compare(timer: PromptTimer, sizes: Sequence[int], is_bounded: bool, run: Run) -> tuple[int, dict[int, float]]:
    """The size to take, and the milliseconds to read a token by the tokens of a pass, as far as was measured.

    A size is timed only if the one before was clearly faster than half of it, and as far as the run's deadline allows.
    The same text is read with both, because tokens behind a longer text take longer. is_bounded: see `choose`.
    """
    best, ms = DEFAULT_UBATCH, dict[int, float]()
    first = timer.ms(0, 1)  # memory is touched for the first time
    if not _is_time(2 * first, run):
        return best, ms
    plain = timer.ms(0, 1)
    each = plain / DEFAULT_UBATCH + max(timer.ms(0, _SMALL) - plain, 0.0) / (_SMALL - 1)
    if is_bounded and not may_gain(plain, each):
        return best, ms
    for small, large in itertools.pairwise(sizes):
        is_first = small not in ms
        if not _is_time((2 * large if is_first else large + small) * each, run):
            break
        parts = (timer.ms(0, small) if is_first else small * ms[small]) + timer.ms(small, small)
        whole = timer.ms(0, large)
        ms.setdefault(small, parts / large)
        ms[large] = each = whole / large
        if parts < _CLEARLY * whole:
            break
        best = large
    return best, ms


def _is_time(ms: float, run: Run) -> bool:
    """Whether passes of so many milliseconds end before the deadline; if not, the user is told."""
    if run.is_over() or time.perf_counter() + ms / 1e3 > run.deadline:
        run.note(
            "larger passes over a prompt (--ubatch-size) were not timed, because they take long; "
            "`specrun tune --thorough` takes more time"
        )
        return False
    return True

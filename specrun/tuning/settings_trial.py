"""What is measured with one choice of llama.cpp's settings on the target, in this process or in another process."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specrun.engine.attention_trial import ANSWER, CONTEXTS, PROMPT
from specrun.engine.model import Model
from specrun.engine.run_options import RunOptions
from specrun.errors import SpecrunError
from specrun.llama.invariance import exact_sizes
from specrun.llama_settings import LlamaSettings
from specrun.long_run import Run
from specrun.processes import child_process
from specrun.profiles.codec import converter
from specrun.profiles.tuning_rows import TriedSettings
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes, best_rate, is_free, tokens_of
from specrun.tuning.pass_timer import PassTimer, TargetTimer, rounds

_SIZES = (1, 2, 4, 8, 16, 32, 64)  # tokens of the timed passes
_FAR_BEHIND = 0.6  # after two sizes in a row with less than this share of the best size's rate, no larger size is timed
_ALWAYS = 4  # tokens of passes that are timed behind many cells in any case
_MAY_BE_BEST = 0.75  # share of the best size's rate behind few cells that a size needs to be timed behind many
_ROUNDS = 2
_LONGEST = 3600.0  # seconds; stands for no deadline in JSON
_VERY_SLOW_MS = 200.0  # time of a plain pass above which no more than the fewest rounds are made


@dataclass(frozen=True)
class Tried:
    """Settings, and what was measured with them."""

    name: str
    settings: LlamaSettings
    ms: dict[int, float]  # milliseconds of a pass, by its tokens
    # Passes of these sizes give a token the same bits, and the least of them was timed; None if that was not compared.
    exact_sizes: PassSizes | None
    prompt_ms: float = 0.0  # milliseconds to read a token of a prompt

    @property
    def score(self) -> float:
        """Answered tokens per millisecond, the time of reading the prompt included, with a draft of usual quality."""
        return self._answered(ANY_SIZE)

    @property
    def exact_score(self) -> float:
        """The same where every pass is padded to `exact_sizes`, which must be known."""
        assert self.exact_sizes
        return self._answered(self.exact_sizes)

    def _answered(self, padding: PassSizes) -> float:
        return ANSWER / (PROMPT * self.prompt_ms + ANSWER / best_rate(padding, self.ms))

    @property
    def is_exact(self) -> bool:
        """Whether all passes are known to be bit-exact at no cost."""
        return self.exact_sizes is not None and is_free(self.exact_sizes, self.ms)

    @property
    def row(self) -> TriedSettings:
        """The trial as a profile keeps it."""
        return TriedSettings(self.name, self.ms, self.exact_sizes, self.score, self.prompt_ms)


def measured(name: str, options: RunOptions, settings: LlamaSettings, compares: bool, text: str, run: Run) -> Tried:
    """Load the target and try `settings` where `options` decide nothing; passes over `text` are timed.

    compares: whether it is measured which sizes of passes give a token the same bits. Raises LlamaError if the model
    does not allow the settings, or there is too little memory.
    """
    decided = options.settings.over(settings)
    largest = SPECEXEC.plan(max(_SIZES), 8)
    # No pass is padded here; which sizes are exact is measured below.
    plain = replace(options, settings=decided, plans=(OFF.plan(),), largest=largest, draft=None, exact=False)
    with Model(plain) as model:
        tokens = model.llama_model.tokenize(text, add_special=False)
        target = model.engine.target
        longest = max(8, model.engine.ctx_size - max(_SIZES) - 1)
        contexts = [min(ctx, longest) for ctx in CONTEXTS]
        timer = TargetTimer(target, tokens)
        timer.fill(contexts[0])
        timer.ms(1)
        sizes, plain_ms = worth_timing(timer, target.room())
        exact = exact_sizes(target, tokens, max(_SIZES), quick=True)[0] if compares else None
        padding = ANY_SIZE if exact is None else exact
        sizes = sorted({*sizes, min(padding.least, target.room())})
        timer.fill(contexts[0])
        short = run.stage(0 if plain_ms > _VERY_SLOW_MS else math.inf)
        near = rounds(timer, contexts[0], sizes, _ROUNDS, short).pass_times()
        started = time.perf_counter()
        timer.fill(contexts[1])
        prompt_ms = 1e3 * (time.perf_counter() - started) / max(contexts[1] - contexts[0], 1)
        by_size = {t.n: t.ms for t in near}
        far = rounds(timer, contexts[1], may_be_best(by_size, padding), _ROUNDS, short).pass_times()
        ms = {t.n: (t.ms + by_size[t.n]) / 2 for t in far}
        return Tried(name, settings, ms, exact, prompt_ms)


def worth_timing(timer: PassTimer, most: int) -> tuple[list[int], float]:
    """The sizes of passes that plans may use, and the time of a plain pass: further ones are far from the best.

    most: tokens of the largest pass that the cache allows.
    """
    plain_ms = timer.ms(1)
    sizes, best, n_behind = [1], 1 / plain_ms, 0
    for n in [size for size in _SIZES[1:] if size <= most]:
        rate = tokens_of(n) / timer.ms(n)
        sizes.append(n)
        n_behind = n_behind + 1 if rate < _FAR_BEHIND * best else 0
        if n_behind == 2:
            break
        best = max(best, rate)
    return sizes, plain_ms


def may_be_best(ms: Mapping[int, float], exact: PassSizes) -> list[int]:
    """The sizes timed behind few cells that may be the best behind many cells, padded to `exact` or not.

    Small sizes, and the least of `exact`, which a plain pass is padded to, are always among them.
    """
    wanted = {n for n in ms if n <= _ALWAYS or n == exact.least}
    for sizes in (ANY_SIZE, exact):
        best = best_rate(sizes, ms)
        wanted |= {n for n, one in ms.items() if n in sizes and tokens_of(n) / one > _MAY_BE_BEST * best}
    return sorted(wanted)


def measured_apart(
    name: str, options: RunOptions, settings: LlamaSettings, compares: bool, text: str, run: Run
) -> Tried:
    """`measured` in a process of its own, which the settings may change for good."""
    debug = logging.getLogger("specrun.llama").isEnabledFor(logging.DEBUG)
    request = {
        "name": name,
        "target": str(options.target),
        "ctx_size": options.ctx_size,
        "decided": converter().unstructure(options.settings),
        "settings": converter().unstructure(settings),
        "compares": compares,
        "text": text,
        "seconds": min(run.deadline - time.perf_counter(), _LONGEST),
    }

    def wait() -> None:
        run.is_over()  # raises KeyboardInterrupt after Ctrl-C

    return converter().structure(child_process.answer(__name__, request, "a trial of settings", wait, debug), Tried)


def serve(request: str) -> None:
    """Print what `measured` gives for the arguments in `request`, which is JSON, or an `error`."""
    child_process.end_with_parent(lambda: None)
    given = json.loads(request)
    settings, decided = (converter().structure(given[key], LlamaSettings) for key in ("settings", "decided"))
    options = RunOptions(Path(given["target"]), None, (OFF.plan(),), ctx_size=given["ctx_size"], settings=decided)
    try:
        run = Run().stage(given["seconds"])
        trial = measured(given["name"], options, settings, given["compares"], given["text"], run)
        print(json.dumps(converter().unstructure(trial)))
    except SpecrunError as error:
        print(json.dumps({"error": str(error)}))

"""Chooses how streamed weights are read: slots, readers and the size of a request, by timing passes.

A further slot takes the memory of a resident layer, so that the number of slots decides how much is resident. Fewer
resident layers than fit are not tried: they leave memory unused, and every pass reads more.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from specrun.engine.model import Model
from specrun.hardware.residency import RingSettings
from specrun.llama.streaming.streamed_weights import StreamedWeights
from specrun.long_run import Run
from specrun.profiles.tuning_rows import TriedRing
from specrun.tuning.pass_timer import TargetTimer

SIZES = (1, 16)  # tokens of the timed passes: reading alone, and reading beside computing
_CTX = 64  # tokens behind which they are timed
_ROUNDS = 2
_CLEARLY = 1.03  # factor by which a way must be faster than the best so far, twice, to replace it

# What is tried, each on top of the best so far; those first that may gain most, as the time may not suffice for all.
_CHANGES: tuple[dict[str, int], ...] = (
    {"n_readers": 4},
    {"n_slots": 3},
    {"request_bytes": 16 * 2**20},
    {"n_readers": 1},
    {"n_slots": 4},
    {"request_bytes": 2**20},
)


def choose(model: Model, text: str, run: Run) -> tuple[RingSettings, list[TriedRing]]:
    """The fastest way to stream the weights of a model, which uses it from then on, and all that were timed.

    Passes over `text` are timed. Nothing further is tried once half of it would not end before the run's deadline.
    """
    weights = model.engine.target.context.weights
    assert isinstance(weights, StreamedWeights)
    timer = TargetTimer(model.engine.target, model.llama_model.tokenize(text, add_special=False))
    sizes = [n for n in SIZES if n <= model.engine.target.room()]

    def timed(ring: RingSettings) -> TriedRing | None:
        if not weights.change(ring):
            return None
        timer.ms(1)  # fills the slots
        rounds = [[timer.ms(n) for n in sizes] for _ in range(_ROUNDS)]
        medians = map(statistics.median, zip(*rounds, strict=True))
        return TriedRing(ring, dict(zip(sizes, medians, strict=True)))

    timer.fill(_CTX)
    best, tried = fastest(timed, run)
    weights.change(best)
    model.engine.reset()
    return best, tried


def fastest(timed: Callable[[RingSettings], TriedRing | None], run: Run) -> tuple[RingSettings, list[TriedRing]]:
    """The best of the ways that are tried, the defaults first. timed: times one; None if it is impossible here.

    What seems to be faster is compared once more with the best so far, because the speed of disks varies.
    """
    started = time.perf_counter()
    run.show(f"reading weights: {RingSettings()}")
    best = timed(RingSettings())
    assert best, "the model streams with the defaults or with more slots"
    tried = [best]
    for change in _CHANGES:
        now = time.perf_counter()
        if run.is_over() or now + 0.5 * (now - started) / len(tried) > run.deadline:
            break
        ring = replace(best.ring, **change)
        run.show(f"reading weights: {ring}")
        trial = timed(ring)
        if trial is None:
            continue
        tried.append(trial)
        if _ms([trial]) * _CLEARLY < _ms([best]):
            again = [timed(best.ring), timed(ring)]
            if _ms([best, again[0]]) > _CLEARLY * _ms([trial, again[1]]):
                best = trial
    return best.ring, tried


def _ms(trials: Sequence[TriedRing | None]) -> float:
    """Milliseconds of one pass of each size, a mean over trials of the same way."""
    return statistics.mean(sum(trial.ms.values()) for trial in trials if trial)

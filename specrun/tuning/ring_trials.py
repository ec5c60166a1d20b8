"""Chooses how streamed weights are read: slots, readers and the size of a request, by timing passes.

A further slot takes the memory of a resident layer, so that the number of slots decides how much is resident. Fewer
resident layers than fit are not tried: they leave memory unused, and every pass reads more.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

from specrun.engine.model import Model
from specrun.engine.trial import best_of, is_faster
from specrun.hardware.residency import RingSettings
from specrun.llama.streaming.streamed_weights import StreamedWeights
from specrun.long_run import Run
from specrun.profiles.profile import TriedRing
from specrun.tuning.pass_timer import TargetTimer

SIZES = (1, 16)  # tokens of the timed passes: reading alone, and reading beside computing
_CTX = 64  # tokens behind which they are timed
_ROUNDS = 2

# What is tried, each on top of the best so far. What may gain most comes first, as the time may not suffice for all.
_CHANGES: tuple[dict[str, int], ...] = (
    {"n_readers": 4},
    {"n_slots": 3},
    {"request_bytes": 16 * 2**20},
    {"n_readers": 1},
    {"n_slots": 4},
    {"request_bytes": 2**20},
)


def choose(model: Model, text: str, run: Run) -> tuple[RingSettings, list[TriedRing]]:
    """The fastest way to stream the weights of a model, which uses it from then on, and all that were timed, in passes
    over `text`.
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
    """The best way to read weights, and all that were tried, the defaults first.

    timed: times one way; None if it is impossible here. What seems to be faster is compared once more with the best so
    far, because the speed of disks varies.
    """

    def tried(change: dict[str, int], best: TriedRing | None) -> TriedRing | None:
        ring = replace(best.ring if best else RingSettings(), **change)
        run.show(f"reading weights: {ring}")
        return timed(ring)

    def is_better(new: TriedRing, best: TriedRing) -> bool:
        return is_faster(_ms(new), _ms(best)) and is_faster(_ms(new, timed(new.ring)), _ms(best, timed(best.ring)))

    outcome = best_of([{}, *_CHANGES], tried, is_better, run)
    assert outcome.best, "the model streams with the defaults or with more slots"
    return outcome.best.ring, outcome.tried


def _ms(*trials: TriedRing | None) -> float:
    """Milliseconds of one pass of each size, a mean over trials of the same way."""
    return statistics.mean(sum(trial.ms.values()) for trial in trials if trial)

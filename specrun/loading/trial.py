"""A trial: candidates are measured one after the other, and the best of them is kept.

Every choice that specrun makes by measuring follows the rules of this file: by how much a candidate must be faster, and
when there is no time for a further one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from specrun import clock
from specrun.long_run import Run

CLEARLY = 1.03  # times as fast as the best so far: repeated measurements of the same settings differ by about as much
CLEARLY_AT_ONCE = 1.05  # the same where a candidate is timed once, or for a fraction of a second

# Tokens of the prompt and of the answer whose time is compared: a turn of a chat, a page read and half a page written.
PROMPT, ANSWER = 500, 256
_WORTH_BEGINNING = 0.5  # share of a usual measurement that must fit before the deadline

Candidate = TypeVar("Candidate")
Found = TypeVar("Found")


def is_faster(ms: float, than: float, margin: float = CLEARLY) -> bool:
    """Whether `ms` is clearly the shorter time. than: the time of the best so far, in the same unit."""
    return ms * margin < than


def is_time(seconds: float, run: Run) -> bool:
    """Whether so many seconds pass before the run's deadline. Raises KeyboardInterrupt once the run is interrupted."""
    return not run.is_over() and clock.now() + seconds <= run.deadline


@dataclass(frozen=True)
class Outcome(Generic[Candidate, Found]):
    """The result of a trial."""

    best: Found | None  # None if no candidate was possible
    tried: list[Found]  # what was found of every candidate that was possible, in their order
    untried: Sequence[Candidate]  # candidates for which there was no time


def best_of(
    candidates: Sequence[Candidate],
    measure: Callable[[Candidate, Found | None], Found | None],
    is_better: Callable[[Found, Found], bool],
    run: Run | None = None,
) -> Outcome[Candidate, Found]:
    """Measure the candidates in their order. The first one is the best until another one is clearly better.

    measure: gets a candidate and the best so far, which it may change in one respect. It returns what it found, or None
    for a candidate that is impossible here or that the best so far makes needless.
    is_better: whether the first finding is clearly better than the second.
    run: after its deadline nothing is measured, except that there always is a best one; None for no deadline. Half of
    the mean time of the candidates before must be left for a further one.
    """
    run = run or Run()
    best: Found | None = None
    started, tried = clock.now(), list[Found]()
    for i, candidate in enumerate(candidates):
        usual = _WORTH_BEGINNING * (clock.now() - started) / max(len(tried), 1)
        if best is not None and not is_time(usual, run):
            return Outcome(best, tried, candidates[i:])
        found = measure(candidate, best)
        if found is None:
            continue
        tried.append(found)
        if best is None or is_better(found, best):
            best = found
    return Outcome(best, tried, ())

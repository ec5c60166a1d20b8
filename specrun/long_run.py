"""What a long command passes down to everything that takes time: where it reports, and when it has to end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from specrun import clock
from specrun.display_text import duration_text
from specrun.interrupts import never

_FAR_OFF = 1.5  # times as much as was shown last: then the end was wrong, and a later one is shown
_ENOUGH = 0.05  # share of the work from which on the time of the rest is shown
_WORTH_SAYING = 20.0  # seconds; what is over sooner needs no announcement


def no_display(_text: str) -> None:
    """The display of what nobody watches."""


def left_text(seconds: float) -> str:
    """The text to append to an activity that takes about this many seconds more; below 0 it takes longer than that."""
    if seconds < -_WORTH_SAYING:
        return f" · {duration_text(-seconds)} longer than expected"
    return f" · about {duration_text(seconds)} left" if seconds > 1 else " · nearly done"


@dataclass
class _Shown:
    """What the user has seen of the end. left: seconds; infinite before any were shown."""

    left: float = math.inf
    is_told: bool = False

    def steadied(self, left: float) -> float:
        """The seconds to show: never more than before, unless the end was far off; then the new one is shown."""
        is_steady = left < _FAR_OFF * self.left + _WORTH_SAYING
        self.left = min(left, max(self.left, 0.0)) if is_steady else left
        return self.left


@dataclass(frozen=True)
class Run:
    """One run of a long command. Moments are values of `clock.now()`, in seconds.

    display: shows what is being done now, in place of what was shown before.
    note: tells the user a sentence that stays.
    interrupted: whether the user has asked for the end, with Ctrl-C.
    expected_end: about when the whole run is over; None if that is unknown.
    deadline: when the stage at hand should end.
    what: the work that `done` counts, in words. begun: when it began. told_from: the share of it by which the time of
    the rest can be judged. share: how much of it is done, from 0 to 1. span: the part of the work of which `done`
    counts the share.
    """

    display: Callable[[str], None] = no_display
    note: Callable[[str], None] = no_display
    interrupted: Callable[[], bool] = never
    expected_end: float | None = None
    deadline: float = math.inf
    what: str = ""
    begun: float = 0.0
    told_from: float = _ENOUGH
    share: float = 0.0
    span: tuple[float, float] = (0.0, 1.0)
    shown: _Shown = field(default_factory=_Shown)

    def show(self, text: str) -> None:
        """Show what is being done now, and how long the rest takes. Raises KeyboardInterrupt once interrupted."""
        self._check()
        if self.share:
            text += f" · {self.share:.0%}"
        if self.expected_end is not None:
            text += left_text(self.shown.steadied(self.expected_end - clock.now()))
        self.display(text)

    def is_over(self) -> bool:
        """Whether the deadline has passed. Raises KeyboardInterrupt once the run is interrupted."""
        self._check()
        return clock.now() > self.deadline

    def expected_to_take(self, seconds: float) -> Run:
        """The same run, about to be over in `seconds`."""
        return replace(self, expected_end=clock.now() + seconds)

    def work(self, what: str, told_from: float = _ENOUGH) -> Run:
        """The same run, whose work, of which `done` counts the share, begins now. what: says it to the user. told_from:
        the share by which the rest can be judged, where the work has parts that take unlike times.
        """
        begun = clock.now()
        return replace(self, what=what, begun=begun, told_from=told_from, expected_end=None, share=0.0, shown=_Shown())

    def part(self, i: int, n: int) -> Run:
        """The same run for one of `n` equal parts of its work, counted from 0: `done` counts the share of that part."""
        begin, end = self.span
        width = (end - begin) / n
        return replace(self, span=(begin + i * width, begin + (i + 1) * width))

    def done(self, share: float) -> Run:
        """The same run with this share of its work done, from 0 to 1, by which the end is expected once enough is done.

        The work and how long the rest takes are then also told in a sentence that stays.
        """
        share = self.span[0] + (self.span[1] - self.span[0]) * share
        if share < self.told_from:
            return replace(self, share=share)
        took = clock.now() - self.begun
        seconds = took * (1 - share) / share
        if not self.shown.is_told:
            self.shown.is_told = True
            if seconds > _WORTH_SAYING:
                known_by = f"as the first {share:.0%} took {duration_text(took)}"
                self.note(f"{self.what}: about {duration_text(seconds)} more, {known_by}")
        return replace(self.expected_to_take(seconds), share=share)

    def stage(self, seconds: float) -> Run:
        """A stage of this run that should end in `seconds`."""
        return replace(self, deadline=clock.now() + seconds)

    def labelled(self, label: str) -> Run:
        """The same run; `label` is put in front of everything it shows."""
        return replace(self, display=lambda text: self.display(f"{label}: {text}"))

    def _check(self) -> None:
        if self.interrupted():
            raise KeyboardInterrupt

"""What a long command passes down to everything that takes time: where it reports, and when it has to end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from specrun.interrupts import never


def unseen(_text: str) -> None:
    """The display of what nobody watches."""


def unwatched() -> AbstractContextManager[Callable[[str], None]]:
    """A block with a display that shows nothing."""
    return nullcontext(unseen)


def left_text(seconds: float) -> str:
    """The text to append to an activity that takes about this many seconds more."""
    return f" · about {seconds:.0f} s left" if seconds > 1 else " · nearly done"


@dataclass(frozen=True)
class Run:
    """One run of a long command. Moments are values of `time.perf_counter()`, in seconds.

    display: shows what is being done now, in place of what was shown before.
    note: tells the user a sentence that stays.
    interrupted: whether the user has asked for the end, with Ctrl-C.
    expected_end: about when the whole run is over; None if that is unknown.
    deadline: when the stage at hand should end.
    """

    display: Callable[[str], None] = unseen
    note: Callable[[str], None] = unseen
    interrupted: Callable[[], bool] = never
    expected_end: float | None = None
    deadline: float = math.inf

    def show(self, text: str) -> None:
        """Show what is being done now, and how long the rest takes. Raises KeyboardInterrupt once interrupted."""
        self._check()
        if self.expected_end is not None:
            text += left_text(self.expected_end - time.perf_counter())
        self.display(text)

    def is_over(self) -> bool:
        """Whether the deadline has passed. Raises KeyboardInterrupt once the run is interrupted."""
        self._check()
        return time.perf_counter() > self.deadline

    def expected_to_take(self, seconds: float) -> Run:
        """The same run, about to be over in `seconds`."""
        return replace(self, expected_end=time.perf_counter() + seconds)

    def stage(self, seconds: float) -> Run:
        """A stage of this run that should end in `seconds`."""
        return replace(self, deadline=time.perf_counter() + seconds)

    def labelled(self, label: str) -> Run:
        """The same run; `label` is put in front of everything it shows."""
        return replace(self, display=lambda text: self.display(f"{label}: {text}"))

    def _check(self) -> None:
        if self.interrupted():
            raise KeyboardInterrupt

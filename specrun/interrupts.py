"""Ctrl-C as a flag that is checked between passes, so that no cache is left half-updated."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


def never() -> bool:
    """The `interrupted` of work that nothing interrupts."""
    return False


class InterruptFlag:
    """A context manager. Inside it the first Ctrl-C sets the flag, and the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._is_set = False

    def __call__(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._is_set

    def __enter__(self) -> InterruptFlag:
        self._is_set = False
        self._previous_handler = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous_handler)

    def _on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if self._is_set:
            raise KeyboardInterrupt
        self._is_set = True

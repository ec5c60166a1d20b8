"""What one thread tells another, which is woken as rarely as possible.

A thread that wakes takes a core from the model's, and the lock of the interpreter, for a part of a millisecond. That
counts where it happens after passes of a few milliseconds.
"""

from __future__ import annotations

import math
import threading
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Outbox(Generic[Event]):
    """Events in their order. Safe to use from several threads. It has no clock: the reader says what time it is.

    rests: whether the reader comes again by itself, so that events that can wait do not wake it. It does while these
        come one soon after the other. Where they come slowly, each wakes it, and it never comes in vain.
    """

    def __init__(self) -> None:
        self.rests = False
        self._events: list[Event] = []
        self._in_use = threading.Lock()
        self._can_last_wait = False
        self._taken_at = -math.inf

    def put(self, event: Event, can_wait: bool) -> bool:
        """Add an event. Returns whether the reader must be woken. can_wait: whether it may be told a little later."""
        with self._in_use:
            self._events.append(event)
            self._can_last_wait = can_wait
            return not (can_wait and self.rests)

    def take(self, now: float, rest_s: float | None) -> list[Event]:
        """Everything that was added since the last time. If `rests` is true afterwards, come again in `rest_s`.

        now: of any clock, in seconds. rest_s: None rests until something comes that cannot wait.
        """
        with self._in_use:
            events, self._events = self._events, []
            is_soon = self.rests or rest_s is None or now < self._taken_at + rest_s
            self.rests = bool(events) and self._can_last_wait and is_soon
            if events:
                self._taken_at = now
            return events

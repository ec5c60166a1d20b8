"""One request in the queue, and what becomes of it: written by the model's thread, read by that of HTTP."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar, cast

from specrun.engine.completion import Completion
from specrun.engine.request import Request
from specrun.sampling.logprobs import TokenLogprob
from specrun.serving.api_error import ApiError
from specrun.serving.prompts import Prompt

GATHER_S = 0.02  # the eye does not see that pieces come so much later


@dataclass(frozen=True)
class Asked:
    """One answer that is wanted.

    prompt: as text and tokens. request: the engine's, with the prompt's tokens.
    anew: whether the whole prompt is read, whatever the caches hold of it.
    """

    prompt: Prompt
    request: Request
    anew: bool = False


@dataclass(frozen=True)
class Piece:
    """More of the answer that is being written. logprobs: of the tokens of `text`, where they are asked for."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Answered:
    """An answer is complete; the next one, if there is any, begins."""

    completion: Completion


Event = Piece | Answered
Item = TypeVar("Item")


class Outbox(Generic[Item]):
    """Events in their order. Safe to use from several threads. It has no clock: the reader says what time it is.

    rests: whether the reader comes again by itself, so that events that can wait do not wake it. It does while these
        come one soon after the other. Where they come slowly, each wakes it, and it never comes in vain.
    """

    def __init__(self) -> None:
        self.rests = False
        self._events: list[Item] = []
        self._in_use = threading.Lock()
        self._can_last_wait = False
        self._taken_at = -math.inf

    def put(self, event: Item, can_wait: bool) -> bool:
        """Add an event. Returns whether the reader must be woken. can_wait: whether it may be told a little later."""
        with self._in_use:
            self._events.append(event)
            self._can_last_wait = can_wait
            return not (can_wait and self.rests)

    def take(self, now: float, rest_s: float | None) -> list[Item]:
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


class Job:
    """Answers that are written one after the other, without others between them. Make it where the event loop runs.

    leave: takes the job out of the queue, and says whether it was there.
    """

    def __init__(self, asked: Sequence[Asked], leave: Callable[[Job], bool]) -> None:
        self.asked = asked
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._outbox: Outbox[Event | Exception] = Outbox()
        self._woken = asyncio.Event()
        self._cancelled = threading.Event()

    # --- the model's thread ---

    def emit(self, event: Event | Exception) -> None:
        """Tell the reader. An exception is the last event."""
        if self._outbox.put(event, can_wait=isinstance(event, Piece)):
            self._loop.call_soon_threadsafe(self._woken.set)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._cancelled.is_set()

    # --- the event loop's thread ---

    def cancel(self) -> None:
        """Nobody waits for the answer any more. It leaves the queue, or ends with the pass that is running."""
        self._cancelled.set()
        if self._leave(self):
            self.emit(ApiError("the client has gone away"))

    async def events(self, keep_alive_s: float | None = None) -> AsyncIterator[Event | None]:
        """Everything that happens until all answers are complete. Raises what ended the job early.

        Pieces that come slowly come at once, as do the first one of an answer and its end. Of faster ones, those of
        `GATHER_S` seconds come as one.

        keep_alive_s: yields None after each so many seconds in which nothing happened. Without it, nobody reads along,
        and all pieces but the first wait for the end of their answer.
        """
        n_left = len(self.asked)
        rest_s = None if keep_alive_s is None else GATHER_S
        while n_left:
            rests = self._outbox.rests
            is_over = await self._is_over(rest_s if rests else keep_alive_s)
            events = self._outbox.take(self._loop.time(), rest_s)
            if is_over and not (rests or events):
                yield None
            for event in _joined(events):
                if isinstance(event, Exception):
                    raise event
                n_left -= isinstance(event, Answered)
                yield event
                if not n_left:
                    return  # what comes behind, as that the server stops, concerns nobody any more

    async def _is_over(self, seconds: float | None) -> bool:
        """Wait for `seconds`, or until the outbox has something that cannot wait. Returns whether they are over."""
        is_over = False

        def wake() -> None:
            nonlocal is_over
            is_over = True
            self._woken.set()

        # Cheaper than asyncio.wait_for, which makes a task.
        alarm = None if seconds is None else self._loop.call_later(seconds, wake)
        try:
            await self._woken.wait()
        finally:
            if alarm:
                alarm.cancel()
        self._woken.clear()
        return is_over


def _joined(events: Iterable[Event | Exception]) -> Iterator[Event | Exception]:
    """The events, where pieces that follow each other are one."""
    for is_piece, group in groupby(events, lambda event: isinstance(event, Piece)):
        if not is_piece:
            yield from group
            continue
        pieces = cast("list[Piece]", list(group))
        text = "".join(piece.text for piece in pieces)
        yield Piece(text, tuple(one for piece in pieces for one in piece.logprobs))

"""Requests in the queue, and the events of their answers: written by the model's thread, read by the thread of HTTP."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Generic, TypeVar, cast

from specrun.decoding.completion import Completion
from specrun.decoding.request import Request
from specrun.sampling.sampler import TokenLogprob
from specrun.serving.api_error import UNAVAILABLE, ApiError
from specrun.serving.prompts import Prompt

_LATEST = 8  # jobs whose mean time says when a place may be free
GATHER_S = 0.02  # the eye does not see that pieces come so much later


@dataclass(frozen=True)
class Asked:
    """An answer that is wanted.

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


# A completion ends its answer; the next one, if there is any, begins.
Event = Piece | Completion
Item = TypeVar("Item")


class Outbox(Generic[Item]):
    """Events in their order, whose reader is woken as rarely as possible. Safe to use from several threads.

    A thread that wakes takes a core from the model's thread, and the interpreter's lock, for a part of a millisecond.
    That counts after passes of a few milliseconds. The outbox has no clock: the reader says what time it is.

    rests: whether the reader looks again by itself, so that events that can wait do not wake it. It does so while
        events follow each other quickly. Where they come slowly, each event wakes it, and it never looks without need.
    """

    def __init__(self) -> None:
        self.rests = False
        self._events: list[Item] = []
        self._in_use = threading.Lock()
        self._can_last_wait = False
        self._taken_at = -math.inf

    def put(self, event: Item, can_wait: bool) -> bool:
        """Add an event. Returns whether the reader must be woken. can_wait: whether it may be read a little later."""
        with self._in_use:
            self._events.append(event)
            self._can_last_wait = can_wait
            return not (can_wait and self.rests)

    def take(self, now: float, rest_s: float | None) -> list[Item]:
        """Everything that was added since the last time. If `rests` is true afterwards, look again in `rest_s`.

        now: seconds of any clock. rest_s: None rests until something comes that cannot wait.
        """
        with self._in_use:
            events, self._events = self._events, []
            is_soon = self.rests or rest_s is None or now < self._taken_at + rest_s
            self.rests = bool(events) and self._can_last_wait and is_soon
            if events:
                self._taken_at = now
            return events


class Job:
    """The answers to a request, which are written in turn. Make it in the thread of the event loop.

    leave: takes the job out of the queue, and returns whether it was there.
    is_cancelled: whether nobody waits for the answer any more.
    """

    def __init__(self, asked: Sequence[Asked], leave: Callable[[Job], bool]) -> None:
        self.asked = asked
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._outbox: Outbox[Event | Exception] = Outbox()
        self._woken = asyncio.Event()
        self.is_cancelled = False

    # --- the model's thread ---

    def emit(self, event: Event | Exception) -> None:
        """Tell the reader. An exception is the last event."""
        if self._outbox.put(event, can_wait=isinstance(event, Piece)):
            self._loop.call_soon_threadsafe(self._woken.set)

    # --- the event loop's thread ---

    def cancel(self) -> None:
        """Nobody waits for the answer any more. It leaves the queue, or ends with the pass that is running."""
        self.is_cancelled = True
        if self._leave(self):
            self.emit(ApiError("the client has gone away"))

    async def events(self, keep_alive_s: float | None = None) -> AsyncIterator[Event | None]:
        """Everything that happens until all answers are complete. Raises what ended the job early.

        The first piece of an answer and its end come at once, and so do pieces that come slowly. Faster pieces are
        gathered for `GATHER_S` seconds and come as one piece.

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
                n_left -= isinstance(event, Completion)
                yield event
                if not n_left:
                    return  # later events, as that the server stops, concern nobody any more

    async def _is_over(self, seconds: float | None) -> bool:
        """Wait for `seconds`, or until the outbox has something that cannot wait. Returns whether they are over."""
        # Cheaper than asyncio.wait_for, which makes a task.
        alarm = None if seconds is None else self._loop.call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if alarm:
                alarm.cancel()
        self._woken.clear()
        return alarm is not None and self._loop.time() >= alarm.when()


def _joined(events: Iterable[Event | Exception]) -> Iterator[Event | Exception]:
    for is_piece, group in groupby(events, lambda event: isinstance(event, Piece)):
        if not is_piece:
            yield from group
            continue
        pieces = cast("list[Piece]", list(group))
        logprobs = tuple(chain.from_iterable(piece.logprobs for piece in pieces))
        yield Piece("".join(piece.text for piece in pieces), logprobs)


class JobQueue:
    """The jobs that wait for the model: first come, first served. Safe to use from several threads.

    most: jobs that may wait, besides those that are being answered. n_refused: jobs for which there was no room.
    n_slots: jobs that may be answered at the same time. n_running: jobs that are being answered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.n_slots = 1
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self.n_running = 0
        self.n_refused = 0
        self._seconds: deque[float] = deque(maxlen=_LATEST)

    def put(self, job: Job) -> None:
        """Add a job. Raises ApiError with the status 503 if there is no room, or the server is stopping."""
        with self._changed:
            if self._is_closed:
                raise stopping()
            if len(self._waiting) >= self._most + self.n_slots - self.n_running:
                self.n_refused += 1
                why = f"{len(self._waiting)} requests are waiting already; try again later, or raise --queue"
                mean_s = sum(self._seconds) / max(len(self._seconds), 1)
                retry = {"Retry-After": str(max(round(mean_s / self.n_slots), 1))}  # when a place may be free
                raise ApiError(why, UNAVAILABLE, headers=retry)
            self._waiting.append(job)
            self._changed.notify()

    def take(self, timeout_s: float, fits: Callable[[Job], bool]) -> Job | None:
        """The job that waits longest; None if there is none after `timeout_s` seconds, or if it does not fit."""
        with self._changed:
            if not self._waiting and timeout_s:
                self._changed.wait(timeout_s)
            if not self._waiting or not fits(self._waiting[0]):
                return None
            self.n_running += 1
            return self._waiting.popleft()

    def done(self, seconds: float) -> None:
        """A job that was taken is answered, or has failed, after so many seconds."""
        with self._changed:
            self.n_running -= 1
            self._seconds.append(seconds)

    def drop(self, job: Job) -> bool:
        """Take out a job whose client has gone away. False if it was out already."""
        with self._changed:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
            return True

    def close(self) -> None:
        """Refuse all jobs, also the waiting ones."""
        with self._changed:
            self._is_closed = True
            refused = list(self._waiting)
            self._waiting.clear()
        for job in refused:
            job.emit(stopping())

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)


def stopping() -> ApiError:
    """The answer to a request for which the server stopped before anything was sent."""
    return ApiError("the server is stopping", UNAVAILABLE)

"""Requests in the queue, and the events of their answers: written by the model's thread, read by the thread of HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.display_text import counted
from specrun.sampling.sampler import TokenLogprob
from specrun.serving.api_error import UNAVAILABLE, ApiError
from specrun.serving.prompts import Prompt
from specrun.serving.request_fields import Sending

# The eye does not see that pieces come so much later. Each costs 0.3 to 0.4 ms, which counts after passes of a few
# milliseconds: the thread that wakes takes a core from the model's thread, and the interpreter's lock.
GATHER_S = 0.02


@dataclass(frozen=True)
class Piece:
    """More of the answer that is being written. logprobs: of the tokens of `text`, where they are asked for."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


# A completion ends its answer; the next one, if there is any, begins.
Event = Piece | Completion


class Job:
    """The answers to a request, which are written in turn. Make it in the thread of the event loop.

    asked: for each answer its prompt, and the engine's request with the prompt's tokens. sending: how it is sent.
    leave: takes the job out of the queue, and returns whether it was there.
    is_cancelled: whether nobody waits for the answer any more.
    """

    def __init__(self, asked: Sequence[tuple[Prompt, Request]], sending: Sending, leave: Callable[[Job], bool]) -> None:
        self.asked = asked
        self.sending = sending
        self.is_cancelled = False
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._lock = threading.Lock()
        self._held: list[Piece] = []
        self._gathers = False  # whether pieces are held: one was told in the last `GATHER_S` seconds

    def emit(self, event: Event | Exception) -> None:
        """Tell the reader, in the model's thread. An exception is the last event.

        The first piece of an answer and its end are told at once, and so are pieces that come slowly. What comes within
        `GATHER_S` seconds after a piece is told as one when they are over; if it is not streamed, with the end.
        """
        with self._lock:
            if not isinstance(event, Piece):
                events, self._gathers = [*self._gathered(), event], False  # the next answer begins at once
            else:
                self._held.append(event)
                if self._gathers:
                    return
                events, self._gathers = self._gathered(), True
        self._loop.call_soon_threadsafe(self._tell, events)

    def _gathered(self) -> list[Event | Exception]:
        """What is held, as one piece, if there is any."""
        held, self._held = self._held, []
        logprobs = tuple(chain.from_iterable(piece.logprobs for piece in held))
        return [Piece("".join(piece.text for piece in held), logprobs)] if held else []

    def _tell(self, events: list[Event | Exception]) -> None:
        """In the event loop's thread, which looks again by itself for what follows a piece: nothing wakes it."""
        for event in events:
            self._events.put_nowait(event)
        if isinstance(events[-1], Piece) and self.sending.stream:
            self._loop.call_later(GATHER_S, self._look_again)

    def _look_again(self) -> None:
        with self._lock:
            events = self._gathered()
            self._gathers = bool(events)
        if events:
            self._tell(events)

    def cancel(self) -> None:
        """Nobody waits for the answer any more. It leaves the queue, or ends with the pass that is running."""
        self.is_cancelled = True
        if self._leave(self):
            self.emit(ApiError("the client has gone away"))

    async def events(self, keep_alive_s: float | None = None) -> AsyncIterator[Event | None]:
        """Everything that happens until all answers are complete. Raises what ended the job early.

        keep_alive_s: yields None after each so many seconds in which nothing happened.
        """
        n_left = len(self.asked)
        while n_left:  # later events, as that the server stops, concern nobody any more
            try:
                event = await asyncio.wait_for(self._events.get(), keep_alive_s)
            except asyncio.TimeoutError:
                yield None
                continue
            if isinstance(event, Exception):
                raise event
            n_left -= isinstance(event, Completion)
            yield event


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
        self._usual_s = 0.0  # how long answers take, the latest ones most

    def put(self, job: Job) -> None:
        """Add a job. Raises ApiError with the status 503 if there is no room, or the server is stopping."""
        with self._changed:
            if self._is_closed:
                raise stopping()
            if len(self._waiting) >= self._most + self.n_slots - self.n_running:
                self.n_refused += 1
                queued = counted(len(self._waiting), "request")
                why = f"the queue has {queued} already; try again later, or raise --queue"
                retry = {"Retry-After": str(max(round(self._usual_s / self.n_slots), 1))}  # when a place may be free
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
            self._usual_s = (self._usual_s + seconds) / 2 if self._usual_s else seconds

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

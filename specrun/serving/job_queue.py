"""The jobs that wait for the model: first come, first served, and no more than a bound."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from specrun.serving.api_error import UNAVAILABLE, ApiError
from specrun.serving.job import Job

_LATEST = 8  # jobs whose mean time says when a place may be free


class JobQueue:
    """Safe to use from several threads.

    most: jobs that may wait, besides those that are being answered. n_refused: jobs for which there was no room.
    n_lanes: jobs that may be answered at the same time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.n_lanes = 1
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._n_running = 0
        self.n_refused = 0
        self._seconds: deque[float] = deque(maxlen=_LATEST)

    def put(self, job: Job) -> None:
        """Add a job. Raises ApiError with the status 503 if there is no room, or the server is stopping."""
        with self._changed:
            if self._is_closed:
                raise _closed()
            if len(self._waiting) >= self._most + self.n_lanes - self._n_running:
                self.n_refused += 1
                raise ApiError(
                    f"{len(self._waiting)} requests are waiting already; try again later, or raise --queue",
                    UNAVAILABLE,
                    headers={"Retry-After": str(self._retry_after())},
                )
            self._waiting.append(job)
            self._changed.notify()

    def take(self, timeout_s: float, fits: Callable[[Job], bool]) -> Job | None:
        """The job that waits longest; None if there is none after `timeout_s` seconds, or if it does not fit."""
        with self._changed:
            if not self._waiting and timeout_s:
                self._changed.wait(timeout_s)
            if not self._waiting or not fits(self._waiting[0]):
                return None
            self._n_running += 1
            return self._waiting.popleft()

    def done(self, seconds: float) -> None:
        """A job that was taken is answered, or has failed, after so many seconds."""
        with self._changed:
            self._n_running -= 1
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
            job.emit(_closed())

    @property
    def n_waiting(self) -> int:
        """Jobs that wait."""
        with self._changed:
            return len(self._waiting)

    @property
    def n_running(self) -> int:
        """Jobs that are being answered."""
        with self._changed:
            return self._n_running

    def _retry_after(self) -> int:
        """Seconds until a place may be free, by what the latest jobs took."""
        mean = sum(self._seconds) / len(self._seconds) if self._seconds else 0.0
        return max(round(mean / self.n_lanes), 1)


def _closed() -> ApiError:
    return ApiError("the server is stopping", UNAVAILABLE)

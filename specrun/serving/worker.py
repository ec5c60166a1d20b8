"""Takes jobs from the queue and writes their answers, several at a time. It alone uses the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from specrun.decoding.conversations import Conversations
from specrun.decoding.together import Together
from specrun.errors import SpecrunError
from specrun.interrupts import never
from specrun.serving.api_error import SERVER_ERROR, ApiError
from specrun.serving.job import Job
from specrun.serving.service import Service
from specrun.serving.writing import Writing

_POLL_S = 0.2  # between looks at whether the server shall stop, while there is nothing to do


class Worker:
    """Writes the answers to the jobs in a queue: passes over all answers, and over prompts, together or in turn.

    service: its model must be loaded. conversations: what the model's engines hold, and copies.
    report: is called with errors of the server itself, which no request has caused.
    """

    def __init__(self, service: Service, conversations: Conversations, report: Callable[[Exception], None]) -> None:
        self._service = service
        self._conversations = conversations
        self._slots = service.loaded.model.slots
        self._queue = service.queue
        self._report = report
        self._together: Together[Writing] = Together(self._slots, conversations.set_one_aside)
        self._running = self._together.texts
        self._interrupted: Callable[[], bool] = never

    def run(self, interrupted: Callable[[], bool]) -> None:
        """Answer jobs until `interrupted()`. It is called after every pass: answers that are being written end."""
        self._interrupted = interrupted
        try:
            while not interrupted():
                with self._errors_ending(self._running):
                    self._admit()
                with self._errors_ending(self._running):
                    self._advance()
                self._retire()
            for answer in self._running:
                answer.end()
            self._conversations.write_some(1, waits=True)
        finally:
            self._queue.close()

    def _admit(self) -> None:
        """Take up jobs in their order, as long as there is a slot and room for each. If nothing is written, wait."""
        self._together.wake()
        while not self._together.is_full:
            job = self._queue.take(0 if self._running else _POLL_S, self._fits)
            if job is None:
                if not self._running:
                    self._conversations.write_some()
                return
            prompt = job.asked[0].request.prompt
            engine = self._conversations.slot_for(prompt, self._together.busy)
            make_room = self._together.make_room
            answer = Writing(job, engine, self._service, self._conversations, make_room, self._interrupted)
            self._running.append(answer)
            with self._errors_ending([answer]):
                answer.begin()
            self._retire()

    def _fits(self, job: Job) -> bool:
        return all(self._together.fits(len(one.request.prompt), one.request.max_tokens) for one in job.asked)

    def _retire(self) -> None:
        for answer in [answer for answer in self._running if answer.is_done]:
            self._running.remove(answer)
            self._queue.done(time.monotonic() - answer.started)

    def _advance(self) -> None:
        for answer in self._running:
            if answer.is_ended:
                answer.end()
        self._retire()
        written = self._together.advance()
        self._service.totals.shared_passes += len(written) > 1
        for answer, done in written:
            with self._errors_ending([answer]):
                answer.add(done)

    @contextmanager
    def _errors_ending(self, involved: Sequence[Writing]) -> Iterator[None]:
        """An error inside the block ends the `involved` jobs, and is sent to their clients."""
        try:
            yield
        except SpecrunError as error:
            for answer in involved:
                answer.fail(error)
                if len(self._slots.engines) > 1:
                    answer.engine.reset()
        except BaseException as error:
            for answer in self._running:
                answer.fail(ApiError("the server failed", SERVER_ERROR))
            if not isinstance(error, Exception):
                raise
            # The caches may be in any state; the next request begins with empty caches.
            for engine in self._slots.engines:
                engine.reset()
            self._report(error)

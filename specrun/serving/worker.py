"""Takes jobs from the queue and writes their answers, several at a time. It alone uses the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from specrun.engine.engine import Engine
from specrun.engine.generation import Generation
from specrun.engine.passes import Passes
from specrun.errors import SpecrunError
from specrun.interrupts import never
from specrun.serving.api_error import SERVER_ERROR, ApiError
from specrun.serving.conversations import Conversations
from specrun.serving.job import Job
from specrun.serving.service import Service
from specrun.serving.writing import Writing

_POLL_S = 0.2  # between looks at whether the server shall stop, while there is nothing to do
# Tokens of an answer for which there must be room when it begins beside others. Chosen by hand: most answers are
# longer, but few are at their longest at the same time, and an answer that finds no room waits for another to end.
_FIRST_TOKENS = 256
_NODES = 16  # room is made for trees of so many nodes


class Worker:
    """Writes the answers to the jobs in a queue: passes over all answers, and over prompts, together or in turn.

    service: its model must be loaded. conversations: what the model's engines hold, and copies.
    report: is called with errors of the server itself, which no request has caused.
    """

    def __init__(self, service: Service, conversations: Conversations, report: Callable[[Exception], None]) -> None:
        self._service = service
        self._conversations = conversations
        self._lanes = service.loaded.model.lanes
        self._ctx_size = self._lanes.engines[0].ctx_size
        self._queue = service.queue
        self._report = report
        self._running: list[Writing] = []  # the oldest first
        self._passes = Passes()
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
        finally:
            self._queue.close()

    # --- which answers are written ---

    def _admit(self) -> None:
        """Take up jobs in their order, as long as there is a lane and room for each. If nothing is written, wait."""
        for answer in self._running:
            has_room = self._n_tokens() + answer.n_tokens + _NODES <= self._ctx_size
            if answer.waits and (has_room or not self._active()):
                self._make_room(answer.n_tokens)
                answer.go_on()
        while len(self._running) < len(self._lanes.engines) and not any(answer.waits for answer in self._running):
            job = self._queue.take(0 if self._running else _POLL_S, self._fits)
            if job is None:
                return
            prompt = job.asked[0].request.prompt
            engine = self._conversations.lane_for(prompt, self._busy)
            answer = Writing(job, engine, self._service, self._conversations, self._interrupted)
            self._running.append(answer)
            self._make_room(len(prompt) - engine.target.held().reusable(prompt))
            with self._errors_ending([answer]):
                answer.begin()
            self._retire()

    def _fits(self, job: Job) -> bool:
        """Whether there is room for a job beside the answers that are being written. Alone, every job has room."""
        if not self._running:
            return True
        requests = [asked.request for asked in job.asked]
        longest = max(len(r.prompt) + min(r.max_tokens or _FIRST_TOKENS, _FIRST_TOKENS) for r in requests)
        return self._n_tokens() + longest <= self._ctx_size

    @property
    def _busy(self) -> list[Engine]:
        return [answer.engine for answer in self._running]

    def _n_tokens(self) -> int:
        """Tokens of all texts that are being written and do not wait."""
        return sum(answer.n_tokens for answer in self._running if not answer.waits)

    def _retire(self) -> None:
        for answer in [answer for answer in self._running if answer.is_done]:
            self._running.remove(answer)
            self._queue.done(time.monotonic() - answer.started)

    # --- how they are written ---

    def _advance(self) -> None:
        """Make a pass over prompts and all answers whose prompts are read, or two passes if they do not fit into it."""
        for answer in self._running:
            if answer.is_ended:
                answer.end()
        self._retire()
        reading = [answer.generation for answer in self._active() if answer.generation.is_reading]
        readers = self._passes.readers(reading) if reading else []
        writing = self._writing()
        if readers and not self._reads_beside(writing, readers):
            if self._make_room(sum(reader.n_next for reader in readers)):
                self._passes.read(readers)
            readers, writing = [], self._writing()
        while writing and not readers and not self._make_room(_least(writing), _least(writing) + _NODES * len(writing)):
            youngest = self._active()[-1]
            youngest.wait()
            writing = [answer for answer in writing if answer is not youngest]
        if writing:
            self._write(writing, readers)

    def _reads_beside(self, writing: Sequence[Writing], readers: Sequence[Generation]) -> bool:
        """Whether the pass over these prompts can have the next tokens of all answers, too. Makes room for them."""
        if not writing or not self._passes.can_write([answer.generation for answer in writing], readers):
            return False
        n = sum(reader.n_next for reader in readers) + _least(writing)
        return self._make_room(n, n + _NODES * len(writing))

    def _writing(self) -> list[Writing]:
        return [answer for answer in self._active() if not answer.generation.is_reading]

    def _active(self) -> list[Writing]:
        return [answer for answer in self._running if not (answer.waits or answer.is_done)]

    def _write(self, writing: Sequence[Writing], readers: Sequence[Generation]) -> None:
        passes = self._passes.next_pass([answer.generation for answer in writing], readers)
        self._service.totals.shared_passes += len(passes) > 1
        for generation, done in passes:
            answer = next(answer for answer in writing if answer.generation is generation)
            with self._errors_ending([answer]):
                answer.add(done)

    def _make_room(self, n: int, wanted: int = 0) -> bool:
        """Free `n` cells, for which conversations may leave the caches. Free `wanted` cells if none has to leave.

        Returns False if fewer than `n` are free.
        """
        self._lanes.make_room(max(n, wanted))
        while not self._lanes.has_room(n) and self._conversations.set_one_aside(self._busy):
            self._lanes.make_room(n)
        return self._lanes.has_room(n)

    @contextmanager
    def _errors_ending(self, involved: Sequence[Writing]) -> Iterator[None]:
        """An error inside the block ends the `involved` jobs, and is sent to their clients."""
        try:
            yield
        except SpecrunError as error:
            for answer in involved:
                answer.fail(error)
                if len(self._lanes.engines) > 1:
                    answer.engine.reset()
        except BaseException as error:
            for answer in self._running:
                answer.fail(ApiError("the server failed", SERVER_ERROR))
            if not isinstance(error, Exception):
                raise
            # The caches may be in any state; the next request begins with empty caches.
            for engine in self._lanes.engines:
                engine.reset()
            self._report(error)


def _least(writing: Sequence[Writing]) -> int:
    """Cells that a pass over these texts needs without any drafts."""
    targets = [answer.engine.target for answer in writing]
    return targets[0].padding.padded(sum(target.n_pending + 1 for target in targets))

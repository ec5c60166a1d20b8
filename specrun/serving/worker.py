"""Takes jobs from the queue and writes their answers, several at a time. It alone uses the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from specrun.engine.decoding import Engine
from specrun.engine.generation import Generation
from specrun.engine.passes import Passes
from specrun.errors import SpecrunError
from specrun.interrupts import never
from specrun.serving.api_error import SERVER_ERROR, ApiError
from specrun.serving.conversations import Conversations
from specrun.serving.job import Asked, Job
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
                self._guarded(self._running, self._admit)
                self._guarded(self._running, self._advance)
                self._retire()
            for one in self._running:
                one.end()
        finally:
            self._queue.close()

    # --- which answers are written ---

    def _admit(self) -> None:
        """Take up jobs in their order, as long as there is a lane and room for each. If nothing is written, wait."""
        for one in self._running:
            has_room = self._n_tokens() + one.n_tokens + _NODES <= self._ctx_size
            if one.waits and (has_room or not self._active()):
                self._make_room(one.n_tokens)
                one.go_on()
        while len(self._running) < len(self._lanes) and not any(one.waits for one in self._running):
            job = self._queue.take(0 if self._running else _POLL_S, self._fits)
            if job is None:
                return
            prompt = job.asked[0].request.prompt
            engine = self._conversations.lane_for(prompt, self._busy)
            one = Writing(job, engine, self._service, self._conversations, self._interrupted)
            self._running.append(one)
            self._make_room(len(prompt) - engine.target.held().reusable(prompt))
            self._guarded([one], one.begin)
            self._retire()

    def _fits(self, job: Job) -> bool:
        """Whether there is room for a job beside the answers that are being written. Alone, every job has room."""
        if not self._running:
            return True
        longest = max(len(asked.request.prompt) + _first_tokens(asked) for asked in job.asked)
        return self._n_tokens() + longest <= self._ctx_size

    @property
    def _busy(self) -> list[Engine]:
        return [one.engine for one in self._running]

    @property
    def _ctx_size(self) -> int:
        return self._lanes.engines[0].ctx_size

    def _n_tokens(self) -> int:
        """Tokens of all texts that are being written and do not wait."""
        return sum(one.n_tokens for one in self._running if not one.waits)

    def _retire(self) -> None:
        for one in [one for one in self._running if one.is_done]:
            self._running.remove(one)
            self._queue.done(one.seconds)

    # --- how they are written ---

    def _advance(self) -> None:
        """Make a pass over prompts and all answers whose prompts are read, or two passes if they do not fit into it."""
        for one in self._running:
            if one.is_ended:
                one.end()
        self._retire()
        reading = [one.generation for one in self._active() if one.generation.is_reading]
        readers = self._passes.readers(reading) if reading else []
        writing = self._writing()
        if readers and not self._reads_beside(writing, readers):
            if self._make_room(sum(one.n_next for one in readers)):
                self._passes.read(readers)
            readers, writing = [], self._writing()
        while writing and not readers and not self._make_room(_least(writing), _least(writing) + _NODES * len(writing)):
            youngest = self._active()[-1]
            youngest.wait()
            writing = [one for one in writing if one is not youngest]
        if writing:
            self._write(writing, readers)

    def _reads_beside(self, writing: Sequence[Writing], readers: Sequence[Generation]) -> bool:
        """Whether the pass over these prompts can have the next tokens of all answers, too. Makes room for them."""
        if not writing or not self._passes.can_write([one.generation for one in writing], readers):
            return False
        n = sum(one.n_next for one in readers) + _least(writing)
        return self._make_room(n, n + _NODES * len(writing))

    def _writing(self) -> list[Writing]:
        """The answers whose prompts are read."""
        return [one for one in self._active() if not one.generation.is_reading]

    def _active(self) -> list[Writing]:
        return [one for one in self._running if not (one.waits or one.is_done)]

    def _write(self, writing: Sequence[Writing], readers: Sequence[Generation]) -> None:
        passes = self._passes.next_pass([one.generation for one in writing], readers)
        self._service.totals.shared_passes += len(passes) > 1
        for generation, done in passes:
            one = next(one for one in writing if one.generation is generation)
            self._guarded([one], partial(one.add, done))

    def _make_room(self, n: int, wanted: int = 0) -> bool:
        """Free `n` cells, for which conversations may leave the caches. Free `wanted` cells if none has to leave.

        Returns False if fewer than `n` are free.
        """
        lanes = self._lanes
        lanes.make_room(max(n, wanted))
        while not lanes.has_room(n) and self._conversations.set_one_aside(self._busy):
            lanes.make_room(n)
        return lanes.has_room(n)

    def _guarded(self, involved: Sequence[Writing], work: Callable[[], None]) -> None:
        """Do some work. An error ends the `involved` jobs, and is sent to their clients."""
        try:
            work()
        except SpecrunError as error:
            for one in involved:
                one.fail(error)
                if len(self._lanes) > 1:
                    one.engine.reset()
        except BaseException as error:
            for one in self._running:
                one.fail(ApiError("the server failed", SERVER_ERROR))
            if not isinstance(error, Exception):
                raise
            # The caches may be in any state; the next request begins with empty ones.
            for engine in self._lanes.engines:
                engine.reset()
            self._report(error)


def _first_tokens(asked: Asked) -> int:
    most = asked.request.max_tokens
    return _FIRST_TOKENS if most is None else min(most, _FIRST_TOKENS)


def _least(writing: Sequence[Writing]) -> int:
    """Cells that a pass over these texts needs without any drafts."""
    targets = [one.engine.target for one in writing]
    return targets[0].padding.padded(sum(target.n_pending + 1 for target in targets))

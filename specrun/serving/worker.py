"""Takes jobs from the queue and writes their answers, several at a time, pass by pass. It alone uses the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from specrun.decoding.completion import Completion
from specrun.decoding.engine import Engine
from specrun.decoding.generation import StepOfText
from specrun.decoding.together import Conversations, SlotText, Together
from specrun.errors import SpecrunError
from specrun.interrupts import never
from specrun.sampling.sampler import TokenLogprob
from specrun.serving.refusals import SERVER_ERROR, ApiError
from specrun.serving.service import Job, Piece, Service, stopping

_POLL_S = 0.2  # between looks at whether the server shall stop, while there is nothing to do


class Writing(SlotText):
    """A job that is being answered in a slot: its answers are written in turn.

    job: what is asked, and where the answers go. started: when the job was taken up, in seconds of `time.monotonic`.
    is_done: whether nothing is left to be done.
    """

    _completion: Completion

    def __init__(self, job: Job, engine: Engine, worker: Worker) -> None:
        super().__init__(engine)
        self.job = job
        self.is_done = False
        self.started = time.monotonic()
        self._worker = worker
        self._n_answered = 0

    @property
    def is_ended(self) -> bool:
        """Whether nobody waits for the answer, or the server stops."""
        return self.job.is_cancelled or self._worker.interrupted()

    def begin(self) -> None:
        """Begin the next answer, whose prompt is read afterwards. Raises PromptError if it does not fit."""
        self._prompt, request = self.job.asked[self._n_answered]
        conversations, make_room = self._worker.conversations, self._worker.together.make_room
        is_cached = self.job.sending.cache_prompt
        if is_cached:
            conversations.take_up(self.engine, request.prompt, make_room)
        else:
            conversations.set_aside(self.engine)
            make_room(len(request.prompt))
        self._completion = self._worker.loaded.model.complete(request, engine=self.engine)
        self._n_bytes = 0  # of the text that was sent
        self._n_told = self._next_at = 0  # tokens whose log-probabilities were sent, and the byte where the next begins
        self.generation = self._completion.generation(lambda: self.is_ended)
        self.generation.begin(conversations.states if is_cached else None)

    def add(self, done: StepOfText) -> None:
        """Send what a pass has written, and begin the next answer if this is its end. Raises PromptError."""
        self._send(self._completion.add(done))
        if self._completion.is_over:
            self.end()

    def end(self) -> None:
        """No further pass will be made for this answer."""
        completion, states = self._completion, self._worker.conversations.states
        self._send(completion.end())
        self._worker.totals.add(completion)
        if states:
            states.has_read(*completion.reading)
        self._worker.loaded.prompts.keep(self._prompt, completion)
        self.job.emit(completion)
        self._n_answered += 1
        is_interrupted = completion.finish_reason == "interrupted"
        if is_interrupted:
            self.job.emit(stopping())
        self.is_done = is_interrupted or self._n_answered == len(self.job.asked)
        if not self.is_done:
            self.begin()

    def fail(self, error: Exception) -> None:
        """Tell the reader why there will be no further text."""
        self._worker.totals.answers["error"] += 1
        self.job.emit(error)
        self.is_done = True

    def _send(self, text: str) -> None:
        """Send `text`, with the log-probability of each token once the first byte of its text is sent.

        An answer holds text back that may begin a stop text. Tokens of a stop text are never sent.
        """
        self._n_bytes += len(text.encode())
        logprobs: list[TokenLogprob] = []
        for written in self._completion.logprobs[self._n_told :]:
            if self._next_at >= self._n_bytes:
                break
            logprobs.append(written)
            self._next_at += len(self._completion.token_bytes(written.token))
        self._n_told += len(logprobs)
        if text or logprobs:
            self.job.emit(Piece(text, tuple(logprobs)))


class Worker:
    """Writes the answers to the jobs in a queue: passes over all answers, and over prompts, together or in turn.

    service: its model must be loaded. conversations: what the model's engines hold, and copies.
    report: is called with errors of the server itself, which no request has caused.
    """

    def __init__(self, service: Service, conversations: Conversations, report: Callable[[Exception], None]) -> None:
        self.loaded = service.loaded
        self.totals = service.totals
        self.conversations = conversations
        self.together: Together[Writing] = Together(self.loaded.model.slots, conversations)
        self.interrupted: Callable[[], bool] = never
        self._queue = service.queue
        self._report = report
        self._running = self.together.texts

    def run(self, interrupted: Callable[[], bool]) -> None:
        """Answer jobs until `interrupted()`. It is called after every pass: answers that are being written end."""
        self.interrupted = interrupted
        try:
            while not interrupted():
                with self._errors_ending(self._running):
                    self._admit()
                with self._errors_ending(self._running):
                    self._advance()
                self._retire()
            for answer in self._running:
                answer.end()
            self.conversations.write_some(1, waits=True)
        finally:
            self._queue.close()

    def _admit(self) -> None:
        """Take up jobs in their order, as long as there is a slot and room for each. If nothing is written, wait."""
        self.together.wake()
        while not self.together.is_full:
            job = self._queue.take(0 if self._running else _POLL_S, self._fits)
            if job is None:
                if not self._running:
                    self.conversations.write_some()
                return
            engine = self.conversations.slot_for(job.asked[0][1].prompt, self.together.busy)
            answer = Writing(job, engine, self)
            self._running.append(answer)
            with self._errors_ending([answer]):
                answer.begin()
            self._retire()

    def _fits(self, job: Job) -> bool:
        return all(self.together.fits(len(request.prompt), request.max_tokens) for _, request in job.asked)

    def _retire(self) -> None:
        for answer in [answer for answer in self._running if answer.is_done]:
            self._running.remove(answer)
            self._queue.done(time.monotonic() - answer.started)

    def _advance(self) -> None:
        for answer in self._running:
            if answer.is_ended:
                answer.end()
        self._retire()
        written = self.together.advance()
        self.totals.shared_passes += len(written) > 1
        for answer, done in written:
            with self._errors_ending([answer]):
                answer.add(done)

    @contextmanager
    def _errors_ending(self, involved: Sequence[Writing]) -> Iterator[None]:
        """An error inside the block ends the `involved` jobs, and is sent to their clients."""
        engines = self.loaded.model.slots.engines
        try:
            yield
        except SpecrunError as error:
            for answer in involved:
                answer.fail(error)
                if len(engines) > 1:
                    answer.engine.reset()
        except BaseException as error:
            for answer in self._running:
                answer.fail(ApiError("the server failed", SERVER_ERROR))
            if not isinstance(error, Exception):
                raise
            # The caches may be in any state; the next request begins with empty caches.
            for engine in engines:
                engine.reset()
            self._report(error)

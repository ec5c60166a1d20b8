"""Takes jobs from the queue and writes their answers. It alone uses the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from specrun.engine.completion import Completion
from specrun.errors import SpecrunError
from specrun.serving.api_error import SERVER_ERROR, ApiError
from specrun.serving.conversations import Conversations
from specrun.serving.job import Answered, Job, Piece
from specrun.serving.released import Released
from specrun.serving.service import Service

_POLL_S = 0.2  # between looks at whether the server shall stop, while there is nothing to do


class Worker:
    """service: its model must be loaded. conversations: those of its engine.

    report: is told of an error that is none of a request's.
    """

    def __init__(self, service: Service, conversations: Conversations, report: Callable[[Exception], None]) -> None:
        self._conversations = conversations
        self._model = service.loaded.model
        self._prompts = service.loaded.prompts
        self._queue = service.queue
        self._totals = service.totals
        self._report = report

    def run(self, interrupted: Callable[[], bool]) -> None:
        """Answer jobs until `interrupted()`. It is called after every pass: an answer that is being written ends."""
        try:
            while not interrupted():
                job = self._queue.take(_POLL_S)
                if job:
                    started = time.monotonic()
                    self._answer(job, interrupted)
                    self._queue.took(time.monotonic() - started)
        finally:
            self._queue.close()

    def _answer(self, job: Job, interrupted: Callable[[], bool]) -> None:
        try:
            for asked in job.asked:
                if asked.anew:
                    self._conversations.set_aside()
                else:
                    self._conversations.take_up(asked.request.prompt)
                completion = self._model.complete(asked.request)
                for piece in self._pieces(completion, lambda: job.is_cancelled() or interrupted()):
                    job.emit(piece)
                self._totals.add(completion)
                self._prompts.keep(asked.prompt, completion)
                job.emit(Answered(completion))
                if completion.finish_reason == "interrupted":
                    job.emit(ApiError("the server is stopping", SERVER_ERROR))
                    break
        except SpecrunError as error:
            self._totals.failed()
            job.emit(error)
        except BaseException as error:
            self._totals.failed()
            job.emit(ApiError("the server failed", SERVER_ERROR))
            if not isinstance(error, Exception):
                raise
            # The caches may be in any state; the next request begins with empty ones.
            self._model.engine.reset()
            self._report(error)

    def _pieces(self, completion: Completion, ended: Callable[[], bool]) -> Iterator[Piece]:
        """Write the answer. Log-probabilities come with the text that they belong to."""
        released = Released(completion.token_bytes)
        n_told = 0
        for text in completion.stream(ended):
            logprobs = released.push(completion.logprobs[n_told:], text)
            n_told = len(completion.logprobs)
            if text or logprobs:
                yield Piece(text, logprobs)

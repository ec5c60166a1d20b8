"""A job that is being answered in a slot: its answers are written in turn, pass by pass."""

from __future__ import annotations

import time
from collections.abc import Callable

from specrun.decoding.completion import Completion
from specrun.decoding.conversations import Conversations
from specrun.decoding.engine import Engine
from specrun.decoding.generation import StepOfText
from specrun.decoding.together import SlotText
from specrun.sampling.sampler import TokenLogprob
from specrun.serving.job import Asked, Job, Piece, stopping
from specrun.serving.service import Service


class Writing(SlotText):
    """The answers of one job.

    job: what is asked, and where the answers go. started: when the job was taken up, in seconds of `time.monotonic`.
    is_done: whether nothing is left to be done.
    """

    _asked: Asked
    _completion: Completion

    def __init__(
        self,
        job: Job,
        engine: Engine,
        service: Service,
        conversations: Conversations,
        make_room: Callable[[int], bool],
        stops: Callable[[], bool],
    ) -> None:
        """service: its model must be loaded. make_room: as for `Conversations.take_up`. stops: whether the server
        stops, and running answers end.
        """
        super().__init__(engine)
        self.job = job
        self.is_done = False
        self._service = service
        self._conversations = conversations
        self._make_room = make_room
        self._stops = stops
        self._n_answered = 0
        self.started = time.monotonic()

    @property
    def is_ended(self) -> bool:
        """Whether nobody waits for the answer, or the server stops."""
        return self.job.is_cancelled or self._stops()

    def begin(self) -> None:
        """Begin the next answer, whose prompt is read afterwards. Raises PromptError if it does not fit."""
        self._asked = asked = self.job.asked[self._n_answered]
        if asked.anew:
            self._conversations.set_aside(self.engine)
            self._make_room(len(asked.request.prompt))
        else:
            self._conversations.take_up(self.engine, asked.request.prompt, self._make_room)
        self._completion = self._service.loaded.model.complete(asked.request, engine=self.engine)
        self._n_bytes = 0  # of the text that was sent
        self._n_told = self._next_at = 0  # tokens whose log-probabilities were sent, and the byte where the next begins
        self.generation = self._completion.generation(lambda: self.is_ended)
        self.generation.begin(None if asked.anew else self._conversations.states)

    def add(self, done: StepOfText) -> None:
        """Send what a pass has written, and begin the next answer if this is its end. Raises PromptError."""
        self._send(self._completion.add(done))
        if self._completion.is_over:
            self.end()

    def end(self) -> None:
        """No further pass will be made for this answer."""
        completion = self._completion
        self._send(completion.end())
        self._service.totals.add(completion)
        if self._conversations.states:
            self._conversations.states.has_read(*completion.reading)
        self._service.loaded.prompts.keep(self._asked.prompt, completion)
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
        self._service.totals.ended("error")
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

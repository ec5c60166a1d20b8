"""A job that is being answered in a lane: its answers are written in turn, pass by pass."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from specrun.engine import saved_caches
from specrun.engine.completion import Completion
from specrun.engine.decoding import Engine
from specrun.engine.generation import Generation
from specrun.engine.saved_caches import SavedCaches
from specrun.engine.statistics import Pass
from specrun.errors import LlamaError
from specrun.sampling.logprobs import TokenLogprob
from specrun.serving.api_error import SERVER_ERROR, ApiError
from specrun.serving.conversations import Conversations
from specrun.serving.job import Answered, Asked, Job, Piece
from specrun.serving.service import Service


class Writing:
    """The answers of one job.

    job: what is asked, and where the answers go. engine: of the lane.
    generation: the passes of the present answer.
    waits: whether it is interrupted because there is no room for all answers.
    is_done: whether nothing is left to be done.
    """

    generation: Generation
    _asked: Asked
    _completion: Completion

    def __init__(
        self,
        job: Job,
        engine: Engine,
        service: Service,
        conversations: Conversations,
        stops: Callable[[], bool],
    ) -> None:
        """service: its model must be loaded. stops: whether the server stops, and running answers end."""
        self.job = job
        self.engine = engine
        self.waits = False
        self.is_done = False
        self._model = service.loaded.model
        self._prompts = service.loaded.prompts
        self._totals = service.totals
        self._conversations = conversations
        self._stops = stops
        self._n_answered = 0
        # While the answer waits: its tokens, and what the caches held of them.
        self._text: list[int] = []
        self._saved: SavedCaches | None = None
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the job was taken up."""
        return time.monotonic() - self._started

    @property
    def is_ended(self) -> bool:
        """Whether nobody waits for the answer, or the server stops."""
        return self.job.is_cancelled() or self._stops()

    def begin(self) -> None:
        """Begin the next answer, whose prompt is read afterwards. Raises PromptError if it does not fit."""
        self._asked = asked = self.job.asked[self._n_answered]
        if asked.anew:
            self._conversations.set_aside(self.engine)
        else:
            self._conversations.take_up(self.engine, asked.request.prompt)
        self._completion = self._model.complete(asked.request, engine=self.engine)
        self._released = _Released(self._completion.token_bytes)
        self._n_told = 0
        self.generation = self._completion.generation(lambda: self.is_ended)
        self.generation.begin()

    def add(self, done: Pass) -> None:
        """Send what a pass has written, and begin the next answer if this is its end. Raises PromptError."""
        self._send(self._completion.add(done))
        if self._completion.is_over:
            self.end()

    def end(self) -> None:
        """No further pass will be made for this answer."""
        completion = self._completion
        self._send(completion.end())
        self._totals.add(completion)
        self._prompts.keep(self._asked.prompt, completion)
        self.job.emit(Answered(completion))
        self._n_answered += 1
        if completion.finish_reason == "interrupted":
            self.job.emit(ApiError("the server is stopping", SERVER_ERROR))
            self.is_done = True
        elif self._n_answered == len(self.job.asked):
            self.is_done = True
        else:
            self.begin()

    def fail(self, error: Exception) -> None:
        """Tell the reader why there will be no further text."""
        self._totals.ended("error")
        self.job.emit(error)
        self.is_done = True

    def wait(self) -> None:
        """Make room for other answers until `go_on`."""
        target = self.engine.target
        self._text = list(target.tokens)
        self._saved = None if target.n_portion else _copy(self.engine)
        self.engine.reset()
        self.waits = True

    def go_on(self) -> None:
        """Go on where `wait` interrupted the answer. The text is read again if there was no memory for a copy."""
        self.waits, saved = False, self._saved
        self._saved = None
        if saved:
            with suppress(LlamaError):
                saved_caches.restore(self.engine, saved)
                return
        self.engine.target.begin_prompt(self._text)

    @property
    def n_tokens(self) -> int:
        """Tokens of the text so far, with its prompt."""
        return len(self._text if self.waits else self.engine.target.tokens)

    def _send(self, text: str) -> None:
        """Log-probabilities go with the text that they belong to."""
        completion = self._completion
        logprobs = self._released.push(completion.logprobs[self._n_told :], text)
        self._n_told = len(completion.logprobs)
        if text or logprobs:
            self.job.emit(Piece(text, logprobs))


def _copy(engine: Engine) -> SavedCaches | None:
    """A copy of what the caches hold, if there is memory for it."""
    with suppress(LlamaError, MemoryError):
        return saved_caches.save(engine)
    return None


class _Released:
    """Gives out the log-probability of a token once the first byte of its text is given out.

    An answer holds text back that may begin a stop text. Tokens of a stop text are never given out.
    token_bytes: gives the bytes of a token.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()  # where each begins, in bytes
        self._n_written = 0  # bytes of all tokens so far
        self._n_released = 0  # bytes of text given out

    def push(self, tokens: Sequence[TokenLogprob], text: str) -> tuple[TokenLogprob, ...]:
        """The tokens whose text begins in the text so far. tokens: written since the last time. text: sent now."""
        for one in tokens:
            self._waiting.append((self._n_written, one))
            self._n_written += len(self._token_bytes(one.token))
        self._n_released += len(text.encode())
        ready = []
        while self._waiting and self._waiting[0][0] < self._n_released:
            ready.append(self._waiting.popleft()[1])
        return tuple(ready)

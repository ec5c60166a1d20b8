"""What the endpoints share: the model and what is made of it, the queue, what the server was started with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specrun.engine.model import Model
from specrun.engine.request import Request
from specrun.sampling.parameters import MAX_SEED
from specrun.serving.api_error import UNAVAILABLE, ApiError
from specrun.serving.job import Asked, Job
from specrun.serving.job_queue import JobQueue
from specrun.serving.prompts import Prompt, Prompts
from specrun.serving.request_fields import Defaults
from specrun.serving.usage import Totals


@dataclass(frozen=True)
class LoadedService:
    """What there is once the model is loaded.

    model: only the worker may write with it; facts about it never change. name: as clients see it.
    """

    model: Model
    prompts: Prompts
    name: str


class Service:
    """What the endpoints and the worker share.

    queue: the jobs that wait. defaults: what absent fields of a request mean. totals: sums over all answers.
    started: seconds of Unix time.
    """

    def __init__(self, queue: JobQueue, defaults: Defaults) -> None:
        self.queue = queue
        self.defaults = defaults
        self.totals = Totals()
        self.started = int(time.time())
        self._loaded: LoadedService | None = None

    def begin(self, loaded: LoadedService) -> None:
        """The model is loaded: requests are answered from now on."""
        self.queue.n_lanes = len(loaded.model.lanes)
        self._loaded = loaded

    @property
    def loaded(self) -> LoadedService:
        """What there is once the model is loaded. Raises ApiError before."""
        if self._loaded is None:
            raise ApiError("the model is being loaded", UNAVAILABLE, headers={"Retry-After": "5"})
        return self._loaded

    def submit(self, prompts: Sequence[Prompt], request: Request, n: int, anew: bool = False) -> Job:
        """Put a job into the queue: for each prompt, `n` answers with consecutive seeds. anew: see `Asked`.

        Raises ApiError if the queue has no room.
        """
        sampling = request.sampling
        seeded = [replace(sampling, seed=(sampling.seed + i) % (MAX_SEED + 1)) for i in range(n)]
        asked = [
            Asked(prompt, replace(request, prompt=prompt.tokens, sampling=one), anew)
            for prompt in prompts
            for one in seeded
        ]
        job = Job(asked, self.queue.drop)
        self.queue.put(job)
        return job

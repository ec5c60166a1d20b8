"""What the endpoints share: the model, the queue, what the server was started with, and sums over all answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from anyio import CapacityLimiter

from specrun.decoding.completion import Completion
from specrun.decoding.request import Request
from specrun.decoding.statistics import Statistics
from specrun.llama.infill import infill_tokens
from specrun.loading.model import Model
from specrun.sampling.adjustments import MAX_SEED
from specrun.serving.api_error import UNAVAILABLE, ApiError
from specrun.serving.job import Asked, Job, JobQueue
from specrun.serving.kept_responses import KeptResponses
from specrun.serving.prompts import Prompt, Prompts
from specrun.serving.request_fields import Defaults

_MOST_CONVERTING = 2  # requests with schemas that are read at once
_COUNTED_HERE = ("answers", "prompt_tokens_cached", "shared_passes")  # not by the statistics of an answer


def cached_tokens(s: Statistics) -> int:
    """Tokens of the prompt that were in the cache. The last token is always decoded, by the first pass."""
    return max(s.prompt_tokens - 1 - s.prompt_tokens_decoded, 0)


def _total(name: str, what: str) -> Any:
    """A sum over answers, and what /metrics calls it."""
    return field(default=0, metadata={"name": f"{name}_total", "what": what})


@dataclass
class Totals:
    """Sums over all answers. Written by the model's thread alone; a reader may see them between two additions.

    answers: number of answers, by why they ended.
    """

    answers: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = _total("prompt_tokens", "Tokens of prompts.")
    prompt_tokens_cached: int = _total("prompt_tokens_cached", "Tokens of prompts that were in the cache.")
    completion_tokens: int = _total("completion_tokens", "Tokens written.")
    passes: int = _total("passes", "Target passes that wrote tokens, counted for each answer.")
    shared_passes: int = _total("shared_passes", "Target passes that several answers shared.")
    drafted: int = _total("drafted_tokens", "Drafted tokens that these passes checked.")
    drafted_accepted: int = _total("drafted_tokens_accepted", "Drafted tokens that were accepted.")
    prefill_seconds: float = _total("prompt_seconds", "Time reading prompts.")
    seconds: float = _total("generation_seconds", "Time writing.")
    target_seconds: float = _total("target_seconds", "Time writing that was spent in target passes.")
    draft_seconds: float = _total(
        "draft_seconds", "Time writing that was spent in draft passes while no target pass ran."
    )

    def add(self, completion: Completion) -> None:
        """Add an answer, whole or interrupted."""
        self.ended(completion.finish_reason)
        self.prompt_tokens_cached += cached_tokens(completion.statistics)
        for name in (number.name for number in fields(self)):
            if name not in _COUNTED_HERE:
                setattr(self, name, getattr(self, name) + getattr(completion.statistics, name))

    def ended(self, reason: str) -> None:
        """Count an answer. reason: why it ended; "error" if it failed."""
        self.answers[reason] = self.answers.get(reason, 0) + 1


@dataclass(frozen=True)
class LoadedService:
    """What there is once the model is loaded.

    model: only the worker may write with it; facts about it never change. name: as clients see it.
    """

    model: Model
    prompts: Prompts
    name: str

    @property
    def capabilities(self) -> list[str]:
        """What the model can do, in Ollama's words."""
        form = self.prompts.format.form
        further = {
            "tools": form.calls is not None,
            "thinking": form.thinks or form.calls == "harmony",
            "insert": infill_tokens(self.model.llama_model, "", "") is not None,
        }
        return ["completion", "chat", *(name for name, is_possible in further.items() if is_possible)]


class Service:
    """What the endpoints and the worker share.

    queue: the jobs that wait. defaults: what absent fields of a request mean. totals: sums over all answers.
    responses: answers of /v1/responses that are kept. converting: bounds the threads in which schemas are converted.
    started: seconds of Unix time.
    """

    def __init__(self, queue: JobQueue, defaults: Defaults) -> None:
        self.queue = queue
        self.defaults = defaults
        self.totals = Totals()
        self.responses = KeptResponses()
        self.converting = CapacityLimiter(_MOST_CONVERTING)
        self.started = int(time.time())
        self._loaded: LoadedService | None = None

    def begin(self, loaded: LoadedService) -> None:
        """The model is loaded: requests are answered from now on."""
        self.queue.n_slots = len(loaded.model.slots.engines)
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
        requests = [(p, replace(request, prompt=p.tokens, sampling=numbers)) for p in prompts for numbers in seeded]
        job = Job([Asked(prompt, own, anew) for prompt, own in requests], self.queue.drop)
        self.queue.put(job)
        return job

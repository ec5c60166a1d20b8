"""What the endpoints share: the model, the queue, what the server was started with, and sums over all answers."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from anyio import CapacityLimiter

from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.decoding.statistics import Statistics
from specrun.loading.model import Model
from specrun.sampling.adjustments import MAX_SEED
from specrun.serving.api_error import UNAVAILABLE, ApiError
from specrun.serving.job import Job, JobQueue
from specrun.serving.prompts import Prompt, Prompts
from specrun.serving.request_fields import Defaults, Sending

Json = dict[str, Any]

_MOST_CONVERTING = 2  # requests with schemas that are read at once
# Of an answer's statistics: what is summed up -> its name in /metrics, and what it is.
SUMS = {
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts."),
    "completion_tokens": ("completion_tokens", "Tokens written."),
    "passes": ("passes", "Target passes that wrote tokens, counted for each answer."),
    "drafted": ("drafted_tokens", "Drafted tokens that these passes checked."),
    "drafted_accepted": ("drafted_tokens_accepted", "Drafted tokens that were accepted."),
    "prefill_seconds": ("prompt_seconds", "Time reading prompts."),
    "seconds": ("generation_seconds", "Time writing."),
    "target_seconds": ("target_seconds", "Time writing that was spent in target passes."),
    "draft_seconds": ("draft_seconds", "Time writing that was spent in draft passes while no target pass ran."),
}


def cached_tokens(s: Statistics) -> int:
    """Tokens of the prompt that were in the cache. The last token is always decoded, by the first pass."""
    return max(s.prompt_tokens - 1 - s.prompt_tokens_decoded, 0)


class Totals:
    """Sums over all answers. Written by the model's thread alone; a reader may see them between two additions.

    answers: number of answers, by why they ended; "error" if they failed. sums: by the names of `SUMS`.
    """

    def __init__(self) -> None:
        self.answers = Counter[str]()
        self.sums = dict.fromkeys(SUMS, 0.0)
        self.prompt_tokens_cached = self.shared_passes = 0

    def add(self, completion: Completion) -> None:
        """Add an answer, whole or interrupted."""
        self.answers[completion.finish_reason] += 1
        self.prompt_tokens_cached += cached_tokens(completion.statistics)
        for name in SUMS:
            self.sums[name] += getattr(completion.statistics, name)


class KeptResponses:
    """Answers of /v1/responses that later requests may name: the latest ones, in RAM. Safe to use from several threads.

    most_bytes: of all of them, as JSON; as objects they would take many times as much.
    """

    def __init__(self, most_bytes: int = 32 * 2**20) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[str, bytes] = {}
        self._of_items: dict[str, str] = {}  # the response of each item of an output, by their ids
        self._in_use = threading.Lock()

    def keep(self, response: Json, conversation: list[Json]) -> None:
        """Keep a response with its conversation: the items of its input, with those before it, and of its output."""
        data = json.dumps([response, conversation]).encode()
        if len(data) > self._most_bytes:
            return
        with self._in_use:
            self._kept[response["id"]] = data
            self._of_items |= {item["id"]: response["id"] for item in response["output"]}
            while sum(map(len, self._kept.values())) > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def find(self, id_: str) -> tuple[Json, list[Json]] | None:
        """A response and its conversation."""
        data = self._kept.get(id_)
        return tuple(json.loads(data)) if data else None

    def item(self, id_: str) -> Json | None:
        """An item that an answer consisted of."""
        found = self.find(self._of_items.get(id_, ""))
        return next(item for item in found[0]["output"] if item["id"] == id_) if found else None

    def forget(self, id_: str) -> None:
        with self._in_use:
            self._drop(id_)

    def _drop(self, id_: str) -> None:
        self._kept.pop(id_, None)
        self._of_items = {item: one for item, one in self._of_items.items() if one != id_}


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
            "insert": self.model.llama_model.infill_tokens("", "") is not None,
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

    def submit(self, prompts: Sequence[Prompt], request: Request, sending: Sending) -> Job:
        """Put a job into the queue: for each prompt, `sending.n` answers with consecutive seeds.

        Raises ApiError if the queue has no room.
        """
        sampling = request.sampling
        seeded = [replace(sampling, seed=(sampling.seed + i) % (MAX_SEED + 1)) for i in range(sending.n)]
        asked = [(p, replace(request, prompt=p.tokens, sampling=numbers)) for p in prompts for numbers in seeded]
        job = Job(asked, sending, self.queue.drop)
        self.queue.put(job)
        return job

"""What the endpoints and the model's thread share: the model, the queue of jobs and the events of their answers, what
the server was started with, answers that are kept, and sums over all of them.

Events are written by the model's thread and read by the thread of HTTP.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from anyio import CapacityLimiter

from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.decoding.statistics import Statistics
from specrun.display_text import counted
from specrun.loading.model import Model
from specrun.sampling.adjustments import MAX_SEED
from specrun.sampling.sampler import TokenLogprob
from specrun.serving.prompts import Prompt, Prompts
from specrun.serving.refusals import UNAVAILABLE, ApiError
from specrun.serving.request_fields import Defaults, Json, Sending

# The eye does not see that pieces come so much later. Each costs 0.3 to 0.4 ms, which counts after passes of a few
# milliseconds: the thread that wakes takes a core from the model's thread, and the interpreter's lock.
GATHER_S = 0.02


@dataclass(frozen=True)
class Piece:
    """More of the answer that is being written. logprobs: of the tokens of `text`, where they are asked for."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


# A completion ends its answer; the next one, if there is any, begins.
Event = Piece | Completion


class Job:
    """The answers to a request, which are written in turn. Make it in the thread of the event loop.

    asked: for each answer its prompt, and the engine's request with the prompt's tokens. sending: how it is sent.
    leave: takes the job out of the queue, and returns whether it was there.
    is_cancelled: whether nobody waits for the answer any more.
    """

    def __init__(self, asked: Sequence[tuple[Prompt, Request]], sending: Sending, leave: Callable[[Job], bool]) -> None:
        self.asked = asked
        self.sending = sending
        self.is_cancelled = False
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._lock = threading.Lock()
        self._held: list[Piece] = []
        self._gathers = False  # whether pieces are held: one was told in the last `GATHER_S` seconds

    def emit(self, event: Event | Exception) -> None:
        """Tell the reader, in the model's thread. An exception is the last event.

        The first piece of an answer and its end are told at once, and so are pieces that come slowly. What comes within
        `GATHER_S` seconds after a piece is told as one when they are over; if it is not streamed, with the end.
        """
        with self._lock:
            if not isinstance(event, Piece):
                events, self._gathers = [*self._gathered(), event], False  # the next answer begins at once
            else:
                self._held.append(event)
                if self._gathers:
                    return
                events, self._gathers = self._gathered(), True
        self._loop.call_soon_threadsafe(self._tell, events)

    def _gathered(self) -> list[Event | Exception]:
        """What is held, as one piece, if there is any."""
        held, self._held = self._held, []
        logprobs = tuple(chain.from_iterable(piece.logprobs for piece in held))
        return [Piece("".join(piece.text for piece in held), logprobs)] if held else []

    def _tell(self, events: list[Event | Exception]) -> None:
        """In the event loop's thread, which looks again by itself for what follows a piece: nothing wakes it."""
        for event in events:
            self._events.put_nowait(event)
        if isinstance(events[-1], Piece) and self.sending.stream:
            self._loop.call_later(GATHER_S, self._look_again)

    def _look_again(self) -> None:
        with self._lock:
            events = self._gathered()
            self._gathers = bool(events)
        if events:
            self._tell(events)

    def cancel(self) -> None:
        """Nobody waits for the answer any more. It leaves the queue, or ends with the pass that is running."""
        self.is_cancelled = True
        if self._leave(self):
            self.emit(ApiError("the client has gone away"))

    async def events(self, keep_alive_s: float | None = None) -> AsyncIterator[Event | None]:
        """Everything that happens until all answers are complete. Raises what ended the job early.

        keep_alive_s: yields None after each so many seconds in which nothing happened.
        """
        n_left = len(self.asked)
        while n_left:  # later events, as that the server stops, concern nobody any more
            try:
                event = await asyncio.wait_for(self._events.get(), keep_alive_s)
            except asyncio.TimeoutError:
                yield None
                continue
            if isinstance(event, Exception):
                raise event
            n_left -= isinstance(event, Completion)
            yield event


class JobQueue:
    """The jobs that wait for the model: first come, first served. Safe to use from several threads.

    most: jobs that may wait, besides those that are being answered. n_refused: jobs for which there was no room.
    n_slots: jobs that may be answered at the same time. n_running: jobs that are being answered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.n_slots = 1
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self.n_running = 0
        self.n_refused = 0
        self._usual_s = 0.0  # how long answers take, the latest ones most

    def put(self, job: Job) -> None:
        """Add a job. Raises ApiError with the status 503 if there is no room, or the server is stopping."""
        with self._changed:
            if self._is_closed:
                raise stopping()
            if len(self._waiting) >= self._most + self.n_slots - self.n_running:
                self.n_refused += 1
                queued = counted(len(self._waiting), "request")
                why = f"the queue has {queued} already; try again later, or raise --queue"
                retry = {"Retry-After": str(max(round(self._usual_s / self.n_slots), 1))}  # when a place may be free
                raise ApiError(why, UNAVAILABLE, headers=retry)
            self._waiting.append(job)
            self._changed.notify()

    def take(self, timeout_s: float, fits: Callable[[Job], bool]) -> Job | None:
        """The job that waits longest; None if there is none after `timeout_s` seconds, or if it does not fit."""
        with self._changed:
            if not self._waiting and timeout_s:
                self._changed.wait(timeout_s)
            if not self._waiting or not fits(self._waiting[0]):
                return None
            self.n_running += 1
            return self._waiting.popleft()

    def done(self, seconds: float) -> None:
        """A job that was taken is answered, or has failed, after so many seconds."""
        with self._changed:
            self.n_running -= 1
            self._usual_s = (self._usual_s + seconds) / 2 if self._usual_s else seconds

    def drop(self, job: Job) -> bool:
        """Take out a job whose client has gone away. False if it was out already."""
        with self._changed:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
            return True

    def close(self) -> None:
        """Refuse all jobs, also the waiting ones."""
        with self._changed:
            self._is_closed = True
            refused = list(self._waiting)
            self._waiting.clear()
        for job in refused:
            job.emit(stopping())

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)


def stopping() -> ApiError:
    """The answer to a request for which the server stopped before anything was sent."""
    return ApiError("the server is stopping", UNAVAILABLE)


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

    def check_loaded(self) -> None:
        """Raise ApiError as long as the model is being loaded."""
        _ = self.loaded

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

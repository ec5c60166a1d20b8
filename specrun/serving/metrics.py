"""GET /metrics: what was written and what it cost, since the server was started, in Prometheus' text format."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from specrun.engine.completion import Completion
from specrun.serving.job_queue import JobQueue
from specrun.serving.usage import cached_tokens

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Totals:
    """Sums over all answers. Written by the model's thread alone; a reader may see them between two additions."""

    answers: dict[str, int] = field(default_factory=dict)  # why they ended -> number
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    completion_tokens: int = 0
    passes: int = 0
    shared_passes: int = 0
    drafted: int = 0
    drafted_accepted: int = 0
    prompt_seconds: float = 0.0
    seconds: float = 0.0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0

    def add(self, completion: Completion) -> None:
        """Add an answer, whole or interrupted."""
        s = completion.statistics
        self.answers[completion.finish_reason] = self.answers.get(completion.finish_reason, 0) + 1
        self.prompt_tokens += s.prompt_tokens
        self.prompt_tokens_cached += cached_tokens(s)
        self.completion_tokens += s.completion_tokens
        self.passes += s.passes
        self.drafted += s.drafted
        self.drafted_accepted += s.drafted_accepted
        self.prompt_seconds += s.prefill_seconds
        self.seconds += s.seconds
        self.target_seconds += s.target_seconds
        self.draft_seconds += s.draft_seconds

    def failed(self) -> None:
        """Add an answer that ended with an error."""
        self.answers["error"] = self.answers.get("error", 0) + 1


class Metrics:
    """The endpoint."""

    def __init__(self, totals: Totals, queue: JobQueue) -> None:
        self._totals = totals
        self._queue = queue

    async def metrics(self, _request: Request) -> Response:
        """All numbers."""
        t, queue = self._totals, self._queue
        lines = ["# HELP specrun_answers_total Answers, by why they ended.", "# TYPE specrun_answers_total counter"]
        lines += [f'specrun_answers_total{{reason="{reason}"}} {n}' for reason, n in sorted(dict(t.answers).items())]
        for name, value, kind, what in (
            ("prompt_tokens_total", t.prompt_tokens, "counter", "Tokens of prompts."),
            ("prompt_tokens_cached_total", t.prompt_tokens_cached, "counter", "Of these, taken from the cache."),
            ("completion_tokens_total", t.completion_tokens, "counter", "Tokens written."),
            ("passes_total", t.passes, "counter", "Target passes that wrote them, counted for each answer."),
            ("shared_passes_total", t.shared_passes, "counter", "Target passes that several answers shared."),
            ("drafted_tokens_total", t.drafted, "counter", "Drafted tokens that these passes checked."),
            ("drafted_tokens_accepted_total", t.drafted_accepted, "counter", "Of these, accepted."),
            ("prompt_seconds_total", t.prompt_seconds, "counter", "Time reading prompts."),
            ("generation_seconds_total", t.seconds, "counter", "Time writing."),
            ("target_seconds_total", t.target_seconds, "counter", "Of it, in target passes."),
            ("draft_seconds_total", t.draft_seconds, "counter", "Of it, in draft passes while no target pass ran."),
            ("tokens_per_pass", t.completion_tokens / max(t.passes, 1), "gauge", "Mean accepted length."),
            ("requests_processing", queue.n_running, "gauge", "Requests that are being answered."),
            ("requests_waiting", queue.n_waiting, "gauge", "Requests that wait."),
            ("requests_refused_total", queue.n_refused, "counter", "Requests refused because too many waited."),
        ):
            lines += [f"# HELP specrun_{name} {what}", f"# TYPE specrun_{name} {kind}", f"specrun_{name} {value:.9g}"]
        return PlainTextResponse("\n".join(lines) + "\n", media_type=_TYPE)

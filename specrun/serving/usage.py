"""Numbers of an answer, as OpenAI (`usage`) and llama-server (`timings`) tell them, and sums over all answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from specrun.engine.completion import Completion
from specrun.engine.statistics import Statistics
from specrun.serving.job import Asked

_COUNTED_HERE = ("answers", "prompt_tokens_cached", "shared_passes")  # not by the statistics of an answer


def usage(asked: Sequence[Asked], completions: Sequence[Completion]) -> dict[str, Any]:
    """Tokens of the answers that were asked for. A prompt that has several answers is counted once."""
    first: dict[int, Statistics] = {}  # of each prompt
    for one, completion in zip(asked, completions, strict=False):
        first.setdefault(id(one.prompt), completion.statistics)
    prompt = sum(s.prompt_tokens for s in first.values())
    written = sum(len(completion.token_ids) for completion in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(map(cached_tokens, first.values()))},
    }


def cached_tokens(s: Statistics) -> int:
    """Tokens of the prompt that were in the cache. The last token is always decoded, by the first pass."""
    return max(s.prompt_tokens - 1 - s.prompt_tokens_decoded, 0)


def timings(completion: Completion) -> dict[str, Any]:
    """What llama-server says of the time of an answer, and `tokens_per_pass`."""
    s = completion.statistics
    prompt_n = s.prompt_tokens - cached_tokens(s)
    prompt_ms, predicted_ms = 1e3 * s.prefill_seconds, 1e3 * s.seconds
    return {
        "cache_n": cached_tokens(s),
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": round(prompt_ms / max(prompt_n, 1), 3),
        "prompt_per_second": round(1e3 * prompt_n / prompt_ms, 3) if prompt_ms else 0.0,
        "predicted_n": s.completion_tokens,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": round(predicted_ms / max(s.completion_tokens, 1), 3),
        "predicted_per_second": round(s.tokens_per_second, 3),
        "draft_n": s.drafted,
        "draft_n_accepted": s.drafted_accepted,
        "tokens_per_pass": round(s.tokens_per_pass, 3),
    }


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
        for one in fields(self):
            if one.name not in _COUNTED_HERE:
                setattr(self, one.name, getattr(self, one.name) + getattr(completion.statistics, one.name))

    def ended(self, reason: str) -> None:
        """Count an answer. reason: why it ended; "error" if it failed."""
        self.answers[reason] = self.answers.get(reason, 0) + 1

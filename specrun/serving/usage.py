"""Numbers of an answer, in the shapes of OpenAI (`usage`) and llama-server (`timings`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specrun.engine.completion import Completion
from specrun.engine.statistics import Statistics
from specrun.serving.job import Job


def usage(job: Job, completions: Sequence[Completion]) -> dict[str, Any]:
    """Tokens of a job whose answers are `completions`. A prompt that has several answers is counted once."""
    first: dict[int, Completion] = {}  # of each prompt
    for asked, completion in zip(job.asked, completions, strict=False):
        first.setdefault(id(asked.prompt), completion)
    prompt = sum(completion.statistics.prompt_tokens for completion in first.values())
    cached = sum(cached_tokens(completion.statistics) for completion in first.values())
    written = sum(len(completion.token_ids) for completion in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def cached_tokens(s: Statistics) -> int:
    """Tokens of the prompt that were in the cache. The last one is always decoded: by the first pass."""
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

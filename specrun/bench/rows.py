"""What one plan did on one kind of text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from specrun.speculation.plan import Plan


@dataclass(frozen=True)
class Sample:
    """One repetition of one row: all prompts of a kind, written with one plan.

    seconds are those after each prefill; first_token_seconds is the mean over prompts, prefill included.
    accepted: passes by accepted length, index 0 is length 1. target_seconds, draft_seconds: of `seconds`, in passes of
    the target, and in drafting that it waited for.
    """

    tokens: int
    seconds: float
    passes: int
    first_token_seconds: float
    accepted: tuple[int, ...] = ()
    target_seconds: float = 0.0
    draft_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Row:
    """A line of the result. Rates are medians over repetitions; a ratio is the median of the ratios within each.

    predicted_tokens_per_second: what the selection runs measured, on another text, for the plan that was chosen there.
    memory_bytes: resident memory of the process at the end of the row, mapped weights included. budget, depth: of the
    plan, for `auto` of the one it followed at the end. accepted_lengths: passes by accepted length, from 1 on.
    target_ms, draft_ms: of a mean pass; drafting that ran beside the target's pass is not in it.
    """

    method: str
    plan: str
    kind: str
    tokens_per_second: float
    tokens_per_second_min: float
    tokens_per_second_max: float
    ratio: float
    tokens_per_pass: float
    predicted_tokens_per_second: float | None
    first_token_seconds: float
    memory_bytes: int
    tokens: int
    repetitions: int
    budget: int
    depth: int
    accepted_lengths: list[int]
    target_ms: float
    draft_ms: float

    def as_json(self) -> dict[str, Any]:
        """The row as JSON values, rounded to what is measured."""
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()}


def summarise(
    method: str,
    plan: str,
    kind: str,
    samples: Sequence[Sample],
    plain: Sequence[Sample],
    predicted: float | None,
    memory_bytes: int,
    size: Plan,
) -> Row:
    """One row from its repetitions and those of plain decoding, in the same order. size: the plan that it followed."""
    rates = [sample.rate for sample in samples]
    passes = sum(sample.passes for sample in samples)
    return Row(
        method=method,
        plan=plan,
        kind=kind,
        tokens_per_second=statistics.median(rates),
        tokens_per_second_min=min(rates),
        tokens_per_second_max=max(rates),
        ratio=statistics.median(s.rate / p.rate if p.rate else 0.0 for s, p in zip(samples, plain, strict=True)),
        tokens_per_pass=sum(sample.tokens for sample in samples) / passes if passes else 0.0,
        predicted_tokens_per_second=predicted,
        first_token_seconds=statistics.median(sample.first_token_seconds for sample in samples),
        memory_bytes=memory_bytes,
        tokens=samples[0].tokens,
        repetitions=len(samples),
        budget=size.budget,
        depth=size.depth,
        accepted_lengths=[sum(counts) for counts in zip_longest(*(s.accepted for s in samples), fillvalue=0)],
        target_ms=1e3 * sum(sample.target_seconds for sample in samples) / max(passes, 1),
        draft_ms=1e3 * sum(sample.draft_seconds for sample in samples) / max(passes, 1),
    )

"""What one plan did on one kind of text."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from specrun.engine.statistics import Statistics
from specrun.speculation.method import Plan


@dataclass(frozen=True)
class Sample:
    """One repetition of a row: the answers to all prompts of a kind, written with one plan."""

    tokens: int  # written
    seconds: float  # without those of the prompts
    passes: int
    first_token_seconds: float  # from the beginning of the prompt to the first token; mean over the prompts
    accepted: tuple[int, ...] = ()  # passes by accepted length, from 1 on
    offered: tuple[int, ...] = ()  # passes that reached a node with children, by the depth of these, from 1 on
    matched: tuple[int, ...] = ()  # passes that accepted one of these children, by its depth, from 1 on
    target_seconds: float = 0.0  # in target passes
    draft_seconds: float = 0.0  # in drafting that the target waited for

    @classmethod
    def of(cls, runs: Sequence[Statistics]) -> Sample:
        """The sample of these generations, one for each prompt."""
        return cls(
            tokens=sum(run.completion_tokens for run in runs),
            seconds=sum(run.seconds for run in runs),
            passes=sum(run.passes for run in runs),
            first_token_seconds=statistics.mean(run.first_token_seconds for run in runs),
            accepted=added(run.accepted for run in runs),
            offered=added(run.offered for run in runs),
            matched=added(run.matched for run in runs),
            target_seconds=sum(run.target_seconds for run in runs),
            draft_seconds=sum(run.draft_seconds for run in runs),
        )

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Row:
    """A line of the result: what one plan did on one kind of text. Rates are medians over the repetitions."""

    method: str  # the name of the row: a method, `chain` or `tree` of the best size, or `auto`
    plan: str
    kind: str  # the kind of text
    tokens_per_second: float
    tokens_per_second_min: float
    tokens_per_second_max: float
    ratio: float  # of the rate to plain decoding's; median over the ratios of the repetitions
    tokens_per_pass: float
    predicted_tokens_per_second: float | None  # of the chosen plan on the text it was chosen on, or by the profile
    first_token_seconds: float
    memory_bytes: int  # resident memory of the process at the end of the row, mapped weights included
    tokens: int  # written in each repetition
    repetitions: int
    budget: int  # nodes of the plan's trees; for `auto`, of the plan that it followed at the end
    depth: int  # drafted tokens on a path of that plan
    accepted_lengths: list[int]  # passes by accepted length, from 1 on
    acceptance_by_depth: list[float]  # of the passes offered nodes at a depth, the share that accepted one; from 1 on
    target_ms: float  # milliseconds of the mean target pass
    draft_ms: float  # milliseconds of drafting before the mean target pass, without drafting during the pass

    def as_json(self) -> dict[str, Any]:
        """The row as JSON values, rounded to 4 decimals."""
        values = {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()}
        return values | {"acceptance_by_depth": [round(share, 4) for share in self.acceptance_by_depth]}


def summarise(
    method: str,
    plan: str,
    kind: str,
    samples: Sequence[Sample],
    plain: Sequence[Sample],
    predicted: float | None,
    memory_bytes: int,
    followed: Plan,
) -> Row:
    """One row from its repetitions and those of plain decoding, in the same order.

    followed: the plan of its last pass. The others are fields of `Row`.
    """
    rates = [sample.rate for sample in samples]
    passes = sum(sample.passes for sample in samples)
    by_depth = added(sample.matched for sample in samples), added(sample.offered for sample in samples)
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
        budget=followed.budget,
        depth=followed.depth,
        accepted_lengths=list(added(sample.accepted for sample in samples)),
        acceptance_by_depth=[matched / offered for matched, offered in zip(*by_depth, strict=True) if offered],
        target_ms=1e3 * sum(sample.target_seconds for sample in samples) / max(passes, 1),
        draft_ms=1e3 * sum(sample.draft_seconds for sample in samples) / max(passes, 1),
    )


def added(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The sums over lists of counts, place by place; shorter lists end in zeros."""
    return tuple(sum(column) for column in zip_longest(*counts, fillvalue=0))

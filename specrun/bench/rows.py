"""What one plan did on one kind of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from statistics import mean, median
from typing import Any

from specrun.engine.statistics import Statistics
from specrun.speculation.method import Plan


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
    # What was expected of each pass before it was made (`Foretold`), where the times of passes are known; else the rate
    # on the text that the plan was chosen on, and None if it was not chosen.
    predicted_tokens_per_second: float | None
    first_token_seconds: float  # from the beginning of the prompt to the first token; mean over the prompts
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
    samples: Sequence[Sequence[Statistics]],
    plain: Sequence[Sequence[Statistics]],
    predicted: float | None,
    memory_bytes: int,
    followed: Plan,
) -> Row:
    """One row from its repetitions and those of plain decoding, in the same order.

    samples, plain: for each repetition, the statistics of the answers to all prompts.
    followed: the plan of the last pass. The other arguments are fields of `Row`.
    """
    rates, plain_rates = list(map(rate, samples)), list(map(rate, plain))
    runs = [run for repetition in samples for run in repetition]
    passes = sum(run.passes for run in runs)
    by_depth = _added(run.matched for run in runs), _added(run.offered for run in runs)
    return Row(
        method=method,
        plan=plan,
        kind=kind,
        tokens_per_second=median(rates),
        tokens_per_second_min=min(rates),
        tokens_per_second_max=max(rates),
        ratio=median(own / other if other else 0.0 for own, other in zip(rates, plain_rates, strict=True)),
        tokens_per_pass=sum(run.completion_tokens for run in runs) / passes if passes else 0.0,
        predicted_tokens_per_second=predicted,
        first_token_seconds=median(mean(run.first_token_seconds for run in repetition) for repetition in samples),
        memory_bytes=memory_bytes,
        tokens=sum(run.completion_tokens for run in samples[0]),
        repetitions=len(samples),
        budget=followed.budget,
        depth=followed.depth,
        accepted_lengths=_added(run.accepted for run in runs),
        acceptance_by_depth=[matched / offered for matched, offered in zip(*by_depth, strict=True) if offered],
        target_ms=1e3 * sum(run.target_seconds for run in runs) / max(passes, 1),
        draft_ms=1e3 * sum(run.draft_seconds for run in runs) / max(passes, 1),
    )


def rate(runs: Sequence[Statistics]) -> float:
    """Tokens per second over several answers, without the time of their prompts."""
    seconds = sum(run.seconds for run in runs)
    return sum(run.completion_tokens for run in runs) / seconds if seconds else 0.0


def _added(counts: Iterable[Sequence[int]]) -> list[int]:
    """The sums over lists of counts, place by place; shorter lists end in zeros."""
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]

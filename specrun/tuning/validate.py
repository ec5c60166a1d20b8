"""Runs plans on texts that they were not chosen on, and chooses by what they did and what was predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from specrun.engine.engine import Engine
from specrun.engine.generation import Generation
from specrun.engine.model import Model
from specrun.engine.passes import write_alone
from specrun.engine.request import Request
from specrun.long_run import Run
from specrun.profiles.profile import Acceptance, TunedPlan, ValidationRow
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.arm import ExpectedPlan
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.method import Plan
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.guide import Guide, PassRecord
from specrun.tuning.choose import TABLES_ERROR, predicted_ratio
from specrun.tuning.rates import BLOCK, BlockTimes, Estimate, block_seconds
from specrun.tuning.replay import Prediction

UNTIMED = 2  # first passes of a text whose time does not count: caches still hold what was there before
_CANNOT_WIN = 2.0  # a plan that is slower than the best plan by more than so many standard errors is run no more
_KNOWN = 0.02  # a plan is run no more once its difference to the best plan is known to this relative error


@dataclass(frozen=True)
class RecordedPlan(FixedPlan):
    """A fixed plan that keeps the records of its passes."""

    records: list[PassRecord] = field(default_factory=list)

    def record(self, step: PassRecord) -> None:
        super().record(step)
        self.records.append(step)


@dataclass
class Validated:
    """What was predicted of a plan, and what it did on the validation texts."""

    prediction: Prediction
    temperature: float
    times: BlockTimes = field(default_factory=BlockTimes)
    tokens: int = 0  # of all texts
    passes: int = 0
    plain_seconds: float = 0.0  # of plain passes that were timed
    table_seconds: float = 0.0  # what these take by the cost tables

    @property
    def plan(self) -> Plan:
        return self.prediction.plan

    @property
    def tokens_per_pass(self) -> float:
        """Mean committed tokens of a target pass, as it was run; 0 if it was not."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def expected_tokens_per_pass(self) -> float:
        """The mean over the passes that were replayed and run. Draft sources are not replayed, so only runs count."""
        n_replayed = 0 if self.passes and self.plan.method.sources else sum(self.prediction.accepted) or 1
        return (self.tokens + n_replayed * self.prediction.tokens_per_pass) / (self.passes + n_replayed)

    def log_ratio(self, other: Validated) -> Estimate:
        """The natural logarithm of how many times as fast as `other` this plan is, by prediction and measurement.

        Where the two differ by more than their errors allow, the cost tables are wrong, and the prediction counts less.
        """
        if self is other:
            return Estimate(0.0, 0.0)
        predicted = predicted_ratio(self.prediction, other.prediction)
        measured = self.times.log_ratio(other.times)
        excess = (predicted.value - measured.value) ** 2 - predicted.error**2 - measured.error**2
        return predicted.widened(math.sqrt(max(excess, 0.0))).combined(measured)

    @property
    def row(self) -> ValidationRow:
        plan, prediction, measured = self.plan, self.prediction, self.times.tokens_per_second
        error = self.times.log_rate.error
        return ValidationRow(
            str(plan), plan.method.name, plan.budget, plan.depth, self.temperature, prediction.tokens_per_second,
            measured, prediction.tokens_per_pass, self.tokens_per_pass, prediction.error,
            measured * error if math.isfinite(error) else 0.0,
        )  # fmt: skip


def passes_of(engine: Engine, plan: Plan, request: Request, guide: Guide | None = None) -> list[PassRecord]:
    """Write a text with the plan, and return its passes."""
    recorded = RecordedPlan(plan, guide)
    for _ in write_alone(Generation(engine, request, recorded)):
        pass
    return recorded.records


def validate(
    model: Model,
    predictions: Sequence[Prediction],
    prompts: Sequence[list[int]],
    acceptance: Acceptance,
    n_tokens: int,
    costs: CostModel,
    run: Run,
) -> list[Validated]:
    """Write `n_tokens` tokens behind the first prompt with every plan, then behind the next, and so on.

    Plain decoding, whose passes all take as long, writes for as long as the other plans. A plan is run no more once it
    cannot win any more, or once it is known well enough how it compares. The prompts behind the first are left out
    after the run's deadline.
    """
    results = [Validated(prediction, acceptance.temperature) for prediction in predictions]
    fastest_predicted = max(prediction.tokens_per_second for prediction in predictions)
    left = list(results)
    for i, prompt in enumerate(prompts):
        if len(left) < 2 or (i and run.is_over()):
            break
        for result in left:
            plan, rate = result.plan, result.prediction.tokens_per_second
            run.show(f"trying {plan} on text {i + 1} of {len(prompts)}, temperature {acceptance.temperature:g}")
            # Each plan starts with the measured calibration, which then shifts with the texts.
            guide = Guide(costs, acceptance.calibration.fresh(), rate / 1e3)
            model.forget()  # all plans write the same text, which draft sources would otherwise remember
            sampling = SamplingParameters(temperature=acceptance.temperature, seed=i)
            n_wanted = n_tokens if plan.drafts else math.ceil(n_tokens * rate / fastest_predicted)
            request = Request(prompt, sampling, UNTIMED + n_wanted, ignore_eos=True)
            _add(result, passes_of(model.engine, plan, request, guide), n_tokens, costs)
        left = still_open(results, left)
    return results


def _add(result: Validated, passes: Sequence[PassRecord], n_tokens: int, costs: CostModel) -> None:
    """Add a text. Plain decoding stops early: the passes that were run stand for the others, with their scatter."""
    lengths, seconds = [one.n_tokens for one in passes], [one.seconds for one in passes]
    result.tokens += sum(lengths)
    result.passes += len(passes)
    if result.plan.drafts:
        blocks = block_seconds(lengths, seconds, UNTIMED)
    else:
        timed = passes[UNTIMED:] or passes
        total = sum(one.seconds for one in timed)
        result.plain_seconds += total
        result.table_seconds += sum(costs.plain_ms(one.ctx) for one in timed) / 1e3
        stand_ins = [timed[i % len(timed)].seconds for i in range(n_tokens // BLOCK)]
        scale = BLOCK * (total / len(timed)) / (sum(stand_ins) / len(stand_ins))
        blocks = tuple(scale * one for one in stand_ins)
    result.times = BlockTimes((*result.times.texts, blocks))


def still_open(results: Sequence[Validated], left: Sequence[Validated]) -> list[Validated]:
    """The plans that further texts could show to be the best, and plain decoding as long as there are others.

    left: the results of the plans that were run on the last text, in their order; `results` of all.
    """
    off = next(result for result in results if not result.plan.drafts)
    best = max(results, key=lambda result: result.log_ratio(off).value)

    def can_win(result: Validated) -> bool:
        behind = best.log_ratio(result)
        return behind.value <= _CANNOT_WIN * behind.error and behind.error > _KNOWN

    if not any(can_win(result) for result in left if result is not best):
        return []
    return [result for result in left if result in (best, off) or can_win(result)]


def tuned_plan(temperature: float, results: Sequence[Validated], plain: Estimate) -> TunedPlan:
    """The plan to follow (see `chosen`), by prediction and measurement weighted by the inverse of their variances.

    plain: the natural logarithm of plain decoding's rate.
    """
    off = next(result for result in results if not result.plan.drafts)
    best, expected = chosen(results), list[ExpectedPlan]()
    for result in results:
        ratio = result.log_ratio(off)
        if math.isfinite(ratio.error):
            rate = math.exp(plain.value + ratio.value)
            expected.append(ExpectedPlan(result.plan, rate, rate * math.hypot(ratio.error, plain.error)))
    expected.sort(key=lambda one: -one.tokens_per_second)
    rates = {one.plan: one.tokens_per_second for one in expected}
    return TunedPlan(temperature, best.plan, rates[best.plan], best.expected_tokens_per_pass, rates[off.plan], expected)


def chosen(results: Sequence[Validated]) -> Validated:
    """The most cautious plan (`Plan.caution`) that is slower than the fastest one by no more than the standard error of
    their difference.
    """
    off = next(result for result in results if not result.plan.drafts)
    known = [result for result in results if math.isfinite(result.log_ratio(off).error)]
    fastest = max(known, key=lambda result: result.log_ratio(off).value)
    tied = [result for result in known if (behind := fastest.log_ratio(result)).value <= behind.error]
    caution = min(result.plan.caution for result in tied)
    as_cautious = [result for result in tied if result.plan.caution == caution]
    return max(as_cautious, key=lambda result: result.log_ratio(off).value)


def plain_rate(off: Validated) -> Estimate:
    """The natural logarithm of plain decoding's rate: as it was measured, or else as it was predicted."""
    measured, predicted = off.times.log_rate, Estimate(math.log(off.prediction.tokens_per_second), 0.0)
    return (measured if math.isfinite(measured.error) else predicted).widened(TABLES_ERROR)

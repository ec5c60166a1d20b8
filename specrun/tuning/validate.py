"""Runs plans on texts that they were not chosen on, and chooses by what they did and what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specrun.engine.model import Model
from specrun.engine.request import Request
from specrun.long_run import Run
from specrun.profiles.acceptance import Acceptance
from specrun.profiles.profile import TunedPlan
from specrun.profiles.tuning_rows import ValidationRow
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.plan import Plan
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.guide import Guide
from specrun.tuning.replay import Prediction

# Plans whose rates differ by a smaller factor are equally fast: rates of repeated runs scatter by about as much.
TIE = 1.03


@dataclass
class Validated:
    """What was predicted of a plan, and the sums over the validation texts of what it did."""

    prediction: Prediction
    temperature: float
    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0  # time of plain decoding for the same tokens, by the cost tables

    @property
    def plan(self) -> Plan:
        """The plan that was run."""
        return self.prediction.plan

    @property
    def measured(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Mean committed tokens of a target pass."""
        return self.tokens / self.passes if self.passes else 0.0

    def expected(self, drift: float) -> float:
        """Tokens per second to be expected on further texts.

        Prediction and measurement are samples of the same rate on different texts. They weigh by the number of passes
        behind them, measurement at least half.

        drift: the factor by which plain decoding was faster on these texts, when the plans were run, than predicted.
        """
        before = sum(self.prediction.accepted)
        weight = max(self.passes / (self.passes + before), 0.5)
        return float((self.prediction.tokens_per_second * drift) ** (1 - weight) * self.measured**weight)

    @property
    def row(self) -> ValidationRow:
        """The result as a profile keeps it."""
        plan, prediction = self.plan, self.prediction
        return ValidationRow(
            str(plan), plan.method.name, plan.budget, plan.depth, self.temperature, prediction.tokens_per_second,
            self.measured, prediction.tokens_per_pass, self.tokens_per_pass,
        )  # fmt: skip


def validate(
    model: Model,
    predictions: Sequence[Prediction],
    prompts: Sequence[list[int]],
    acceptance: Acceptance,
    n_tokens: int,
    costs: CostModel,
    run: Run,
) -> list[Validated]:
    """Write `n_tokens` tokens behind every prompt with every plan, in turn.

    The prompts behind the first are left out after the run's deadline.
    """
    temperature = acceptance.temperature
    results = [Validated(prediction, temperature) for prediction in predictions]
    request = Request([], SamplingParameters(temperature=temperature), n_tokens, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        if i and run.is_over():
            break
        for result in results:
            run.show(f"trying {result.plan} on text {i + 1} of {len(prompts)}, temperature {temperature:g}")
            # Each plan starts with the measured calibration, which then shifts with the texts.
            guide = Guide(costs, acceptance.calibration.fresh(), result.prediction.tokens_per_second / 1e3)
            model.forget()  # all plans write the same text, which draft sources would otherwise remember
            generation = model.engine.generate(replace(request, prompt=prompt), FixedPlan(result.plan, guide))
            for _ in generation:
                pass
            statistics = generation.statistics
            n_new = statistics.completion_tokens
            result.tokens += n_new
            result.passes += statistics.passes
            result.seconds += statistics.seconds
            result.plain_seconds += sum(costs.plain_ms(len(prompt) + k) for k in range(n_new)) / 1e3
    return results


def fastest(temperature: float, results: Sequence[Validated]) -> TunedPlan:
    """The plan with the highest expected rate of those that were run at this temperature, plain decoding among them.

    An adaptive tree is preferred to a fixed plan that is equally fast, because it follows what changes.
    """
    off = next(result for result in results if not result.plan.drafts)
    expected = expectations(results, drift=off.measured / off.prediction.tokens_per_second)
    eligible = [result for result in results if result.plan in expected]
    best = max(eligible, key=lambda result: expected[result.plan] * (TIE if result.plan.method.is_adaptive else 1))
    drafting = [result.plan for result in eligible if result.plan.drafts]
    other = max(drafting, key=lambda plan: expected[plan], default=None) if not best.plan.drafts else None
    return TunedPlan(
        temperature,
        best.plan,
        expected[best.plan],
        expected[best.plan] * best.seconds / best.passes,
        expected[off.plan],
        other,
        expected[other] if other else 0.0,
    )


def expectations(results: Sequence[Validated], drift: float) -> dict[Plan, float]:
    """Tokens per second to be expected of each plan that may be chosen.

    The gain of draft sources and of overlap cannot be predicted, so a plan with them is measured against the same plan
    without. The plan with sources replaces the one without unless it was slower, as the next text may copy more; a plan
    with overlap is there only where it was faster. drift: see `Validated.expected`.
    """
    measured = {result.plan: result.measured for result in results}
    without_sources = {plan.method.with_sources: plan for plan in measured if plan.method.with_sources}
    expected = {
        result.plan: result.expected(drift)
        for result in results
        if not result.plan.overlap and result.plan.method not in without_sources
    }
    for plan in (plan for plan in measured if plan.method in without_sources and not plan.overlap):
        alone = without_sources[plan.method]
        if TIE * measured[plan] >= measured[alone]:
            expected[plan] = expected.pop(alone) * measured[plan] / measured[alone]
    for ahead in (plan for plan in measured if plan.overlap):
        alone = replace(ahead, overlap=False)
        if alone in expected and measured[ahead] > TIE * measured[alone]:
            expected[ahead] = expected[alone] * measured[ahead] / measured[alone]
    return expected

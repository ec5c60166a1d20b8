"""Runs plans on texts that they were not chosen on, and sets what they did beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specrun.engine.model import Model
from specrun.engine.request import Request
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.plan import Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.guide import Guide
from specrun.tuning.replay import Prediction

TIE = 1.03  # plans whose rates differ by less are equally fast, up to noise


@dataclass
class Validated:
    """A plan, what was predicted of it (tokens a second and a pass), and what it did in `seconds` on other texts.
    plain_seconds: what plain decoding should take for the same tokens by the cost tables.
    """

    prediction: Prediction
    temperature: float
    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0

    @property
    def plan(self) -> Plan:
        return self.prediction.plan

    @property
    def measured(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes if self.passes else 0.0

    def expected(self, drift: float) -> float:
        """Tokens a second to be expected: prediction and measurement are samples of the same thing on other texts, and
        weigh by the passes behind them, measurement at least half.

        drift: how much faster plain decoding was on these texts, when the plans were run, than was predicted on others.
        """
        before = sum(self.prediction.accepted)
        weight = max(self.passes / (self.passes + before), 0.5)
        return float((self.prediction.tokens_per_second * drift) ** (1 - weight) * self.measured**weight)

    def as_json(self) -> dict[str, Any]:
        return {
            "plan": str(self.plan),
            "method": self.plan.method.name,
            "budget": self.plan.budget,
            "depth": self.plan.depth,
            "temperature": self.temperature,
            "predicted": round(self.prediction.tokens_per_second, 3),
            "measured": round(self.measured, 3),
            "predicted_tokens_per_pass": round(self.prediction.tokens_per_pass, 3),
            "measured_tokens_per_pass": round(self.tokens_per_pass, 3),
        }


def validate(
    model: Model,
    predictions: Sequence[Prediction],
    prompts: Sequence[list[int]],
    temperature: float,
    n_tokens: int,
    costs: CostModel,
    calibration: Calibration,
    over: Callable[[], bool],
    progress: Callable[[str], None],
) -> list[Validated]:
    """Every plan on every prompt, plans taking turns. `over` is asked between prompts; one is run in any case."""
    results = [Validated(prediction, temperature) for prediction in predictions]
    sampling = SamplingParameters(temperature=temperature)
    for i, prompt in enumerate(prompts):
        if i and over():
            break
        for result in results:
            progress(f"trying {result.plan} on text {i + 1} of {len(prompts)}, temperature {temperature:g}")
            rate = result.prediction.tokens_per_second / 1e3
            # A calibration of its own: it shifts with the texts, and each plan begins from what was measured.
            guide = Guide(costs, Calibration.from_json(calibration.as_json()), rate)
            model.forget()  # all plans write the same text, which draft sources would know from the plan before
            request = Request(prompt, sampling, n_tokens, ignore_eos=True)
            generation = model.engine.generate(request, FixedPlan(result.plan, guide))
            for _ in generation:
                pass
            statistics = generation.statistics
            result.tokens += statistics.completion_tokens
            result.passes += statistics.passes
            result.seconds += statistics.seconds
            n_new = statistics.completion_tokens
            result.plain_seconds += sum(costs.plain_ms(len(prompt) + k) for k in range(n_new)) / 1e3
    return results


def expectations(results: Sequence[Validated], drift: float) -> dict[Plan, float]:
    """Tokens a second to be expected of each plan that may be chosen.

    What draft sources and drafting ahead gain cannot be predicted, so a plan with them is measured against the same one
    without. Sources take its place unless they were slower, as the next text may copy more; drafting ahead is there
    only where it was seen to pay. drift: see `Validated.expected`.
    """
    measured = {v.plan: v.measured for v in results}
    with_sources = {plan.method.with_sources: plan for plan in measured if plan.method.with_sources}
    expected = {v.plan: v.expected(drift) for v in results if not v.plan.overlap and v.plan.method not in with_sources}
    for plan in (plan for plan in measured if plan.method in with_sources and not plan.overlap):
        alone = with_sources[plan.method]
        if TIE * measured[plan] >= measured[alone]:
            expected[plan] = expected.pop(alone) * measured[plan] / measured[alone]
    for ahead in (plan for plan in measured if plan.overlap):
        alone = replace(ahead, overlap=False)
        if alone in expected and measured[ahead] > TIE * measured[alone]:
            expected[ahead] = expected[alone] * measured[ahead] / measured[alone]
    return expected

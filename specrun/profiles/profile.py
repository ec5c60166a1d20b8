"""A profile: what was measured of a pair on a machine, and the plans that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from specrun.llama_settings import LlamaSettings
from specrun.profiles.acceptance import Acceptance
from specrun.profiles.tuning_rows import PredictionRow, TriedSettings, ValidationRow
from specrun.speculation.controllers.profiled import ByTemperature, ProfiledPlan, nearest
from specrun.speculation.drafters.guessed import COPIED_NODES, DRAFTLESS
from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.guide import Guide


@dataclass(frozen=True)
class TunedPlan:
    """The plan for one temperature, and what is expected of it."""

    temperature: float
    plan: Plan
    predicted_tokens_per_second: float
    predicted_tokens_per_pass: float
    plain_tokens_per_second: float  # of plain decoding
    other: Plan | None = None  # the best plan that drafts, where `plan` does not
    other_tokens_per_second: float = 0.0


@dataclass(frozen=True)
class Profile:
    """What one run of `specrun tune` measured and chose."""

    fingerprint: str  # hash of `identity`
    identity: dict[str, Any]  # everything that the measurements depend on, in parts, so that a change can be named
    created: str  # ISO 8601, UTC
    target: str  # file name
    draft: str  # file name; empty without a draft
    hardware: dict[str, Any]  # the machine as plain values, and under "summary" as lines to print
    settings: LlamaSettings  # the target's, which were measured
    regime: str  # where the weights lie
    exact_up_to: int  # tokens of the largest pass whose logits are bit-exact; 1 if not even passes over two are
    costs: CostModel
    acceptance: list[Acceptance]  # one for each temperature; empty without a draft
    plans: list[TunedPlan]  # one for each temperature
    validation: list[ValidationRow] = field(default_factory=list)
    predictions: dict[float, list[PredictionRow]] = field(default_factory=dict)  # by temperature, fastest plan first
    tried: list[TriedSettings] = field(default_factory=list)
    picture: str = ""  # where the layers lie, as plain text
    notices: list[str] = field(default_factory=list)  # sentences for the user, most about what disturbed it

    def chooser(self) -> ByTemperature:
        """A controller that follows the plans of this profile while generating."""
        return ByTemperature({
            tuned.temperature: ProfiledPlan(
                tuned.plan, tuned.predicted_tokens_per_second, self.guide(tuned.temperature), tuned.other,
                tuned.other_tokens_per_second,
            )
            for tuned in self.plans
        })  # fmt: skip

    def guide(self, temperature: float) -> Guide:
        """Cost tables, calibration and expected rate for a text of this temperature."""
        tuned = self.at(temperature)
        rate = max(tuned.predicted_tokens_per_second, tuned.plain_tokens_per_second) / 1e3
        # A calibration of its own, because it shifts with the texts that are written.
        calibration = self.acceptance_at(temperature).calibration.fresh() if self.acceptance else None
        return Guide(self.costs, calibration, rate)

    def without_draft(self, exact: bool) -> Profile:
        """The part of the profile that holds for the target without a draft: its settings and its pass times.

        Its plans draft from the text itself. exact: only in passes whose logits are bit-exact.
        """
        largest = min(COPIED_NODES, self.costs.target.largest)
        if exact:
            largest = min(largest, self.exact_up_to)
        plan = DRAFTLESS.plan(largest) if largest > 1 else OFF.plan()
        rates = [(tuned.temperature, tuned.plain_tokens_per_second) for tuned in self.plans]
        plans = [TunedPlan(temperature, plan, rate, 1.0, rate) for temperature, rate in rates]
        costs = CostModel(self.costs.target, None, self.costs.overhead)
        return replace(self, draft="", costs=costs, acceptance=[], plans=plans)

    def at(self, temperature: float) -> TunedPlan:
        """The plan for the measured temperature nearest to `temperature`."""
        measured = nearest(temperature, [tuned.temperature for tuned in self.plans])
        return next(tuned for tuned in self.plans if tuned.temperature == measured)

    def acceptance_at(self, temperature: float) -> Acceptance:
        """The acceptance at the measured temperature nearest to `temperature`. Raises ValueError without a draft."""
        measured = nearest(temperature, [acceptance.temperature for acceptance in self.acceptance])
        return next(acceptance for acceptance in self.acceptance if acceptance.temperature == measured)

    def candidates(self) -> tuple[Plan, ...]:
        """Every plan that `chooser` may follow."""
        plans = [plan for tuned in self.plans for plan in (tuned.plan, tuned.other) if plan]
        return tuple(dict.fromkeys(plans))

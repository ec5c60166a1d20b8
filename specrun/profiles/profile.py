"""A profile: what was measured of a pair on a machine, and the plans that follow from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Literal

from specrun.hardware.fit import Residency
from specrun.llama_settings import LlamaSettings
from specrun.speculation.controllers.arm import ExpectedPlan, untried
from specrun.speculation.drafters.guessed import COPIED_NODES, DRAFTLESS
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.guide import Guide, RunCosts
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY, PassSizes

Origin = Literal["tuned", "learned"]


def now() -> str:
    """The time of something that was measured, in ISO 8601: as text, later ones come later."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def nearest(temperature: float, measured: Iterable[float]) -> float:
    """The nearest measured temperature. Greedy and sampled texts differ most, so 0 stands for 0 only if possible."""
    return min(measured, key=lambda t: ((t == 0) != (temperature == 0), abs(t - temperature)))


@dataclass(frozen=True)
class Acceptance:
    """How many of the draft's tokens the target accepts at one temperature, along texts that the target wrote."""

    temperature: float
    calibration: Calibration


@dataclass(frozen=True)
class TunedPlan:
    """The plan for one temperature, and what is expected of it."""

    temperature: float
    plan: Plan
    predicted_tokens_per_second: float
    predicted_tokens_per_pass: float
    plain_tokens_per_second: float  # of plain decoding
    expected: list[ExpectedPlan]  # plans that were measured, plain decoding too, fastest first
    # Multiples of plain decoding's rate: the range in which nine of ten other texts are expected, apart from those that
    # repeat themselves or their prompt; and what `specrun tune` wrote, by kind of text. None and empty without that.
    ratio_range: tuple[float, float] | None = None
    ratio_by_kind: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TriedSettings:
    """Settings of llama.cpp that were tried on the target."""

    name: str
    ms: dict[int, float]  # milliseconds of a pass, by its tokens
    exact_sizes: PassSizes | None  # passes of these sizes give a token the same bits; None if that was not compared
    score: float  # answered tokens per millisecond, see `specrun.tuning.settings_trials`
    prompt_ms: float  # milliseconds to read a token of a prompt


@dataclass(frozen=True)
class Profile:
    """What one run of `specrun tune` measured and chose."""

    identity: dict[str, Any]  # everything that the measurements depend on, in parts, so that a change can be named
    target: str  # file name
    draft: str  # file name; empty without a draft
    settings: LlamaSettings  # the target's, which were measured
    costs: CostModel
    acceptance: list[Acceptance]  # one for each temperature; empty without a draft
    plans: list[TunedPlan]  # one for each temperature
    folders: tuple[str, str] = ("", "")  # names of those in which both files lie; empty where that is not known
    created: str = field(default_factory=now)  # ISO 8601
    hardware: dict[str, Any] = field(default_factory=dict)  # as plain values, and under "summary" as lines to print
    regime: str = ""  # where the weights lie
    exact_sizes: PassSizes = PLAIN_ONLY  # passes of these sizes give a token the same bits, as far as is known
    pads: bool = False  # whether the plans were measured, and run, with every pass padded to these sizes
    tried: list[TriedSettings] = field(default_factory=list)
    prompt_ms: dict[int, float] = field(default_factory=dict)  # to read a token, by tokens of a pass over a prompt
    residency: Residency = field(default_factory=Residency)  # how the target's weights in RAM were held
    picture: str = ""  # where the layers lie, as plain text
    notices: list[str] = field(default_factory=list)  # sentences for the user, most about what disturbed it
    other_load: float = 0.0  # cores that other programs held in the stage of `specrun tune` in which they held most
    origin: Origin = "tuned"  # `specrun tune` measured it, or runs of `auto` learned it while they wrote

    @property
    def padding(self) -> PassSizes:
        return self.exact_sizes if self.pads else ANY_SIZE

    def guide(self, temperature: float) -> Guide:
        """Cost tables, calibration and expected rate for a text of this temperature."""
        tuned = self.at(temperature)
        rate = max(tuned.predicted_tokens_per_second, tuned.plain_tokens_per_second) / 1e3
        # A calibration of its own, because it shifts with the texts that are written.
        calibration = Calibration(self.acceptance_at(temperature).calibration.counts) if self.acceptance else None
        return Guide(RunCosts.of(self.costs, self.padding), calibration, rate)

    def without_draft(self) -> Profile:
        """The part of the profile that holds for the target without a draft: its settings and its pass times.

        Its plans draft from the text itself.
        """
        largest = self.padding.largest(min(COPIED_NODES, self.costs.target.largest))
        plan = DRAFTLESS.plan(largest) if largest > 1 else OFF.plan()
        plans = []
        for tuned in self.plans:
            rate = tuned.plain_tokens_per_second
            expected = [*untried([plan], rate), ExpectedPlan(OFF.plan(), rate, 0.0)]
            plans.append(TunedPlan(tuned.temperature, plan, rate, 1.0, rate, expected))
        costs = CostModel(self.costs.target)
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
        """Every plan that `choosers` may follow: those measured, and the draft sources of plans with a draft alone."""
        plans = [expected.plan for tuned in self.plans for expected in tuned.expected]
        alone = [plan.follows(method) for plan in plans if (method := plan.method.without_draft)]
        return tuple(dict.fromkeys([*plans, *alone]))

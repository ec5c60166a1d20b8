"""Profiles: what was measured of a pair on a machine, and the plans that follow; as JSON as well."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specrun.errors import ProfileError
from specrun.llama_settings import LlamaSettings
from specrun.speculation.controllers.profiled import ByTemperature, ProfiledPlan, nearest
from specrun.speculation.drafters.guessed import COPIED_NODES, DRAFTLESS
from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.guide import Guide
from specrun.speculation.registry import METHODS
from specrun.speculation.shape import TreeShape
from specrun.tuning.acceptance_meter import Acceptance

VERSION = 2


@dataclass(frozen=True)
class TunedPlan:
    """The plan for one temperature. predicted_*: what is expected of it, and of plain decoding. other: the best plan
    that drafts where the plan is off, with what was expected of it.
    """

    temperature: float
    plan: Plan
    predicted_tokens_per_second: float
    predicted_tokens_per_pass: float
    plain_tokens_per_second: float
    other: Plan | None = None
    other_tokens_per_second: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            **_plan_json(self.plan),
            "predicted_tokens_per_second": round(self.predicted_tokens_per_second, 3),
            "predicted_tokens_per_pass": round(self.predicted_tokens_per_pass, 3),
            "plain_tokens_per_second": round(self.plain_tokens_per_second, 3),
            "other": _plan_json(self.other) if self.other else None,
            "other_tokens_per_second": round(self.other_tokens_per_second, 3),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TunedPlan:
        other = value["other"]
        return cls(
            float(value["temperature"]),
            _plan(value),
            float(value["predicted_tokens_per_second"]),
            float(value["predicted_tokens_per_pass"]),
            float(value["plain_tokens_per_second"]),
            _plan(other) if other else None,
            float(value["other_tokens_per_second"]),
        )


def _plan_json(plan: Plan) -> dict[str, Any]:
    size = {"method": plan.method.name, "budget": plan.budget, "depth": plan.depth, "width": plan.width}
    size["overlap"] = plan.overlap
    return size | ({"children": list(plan.shape.child_counts)} if plan.shape else {})


def _plan(value: dict[str, Any]) -> Plan:
    if value["method"] not in METHODS:
        raise ValueError(f"no method {value['method']}")
    plan = Plan(METHODS[value["method"]], int(value["budget"]), int(value["depth"]), int(value["width"]))
    plan = replace(plan, overlap=bool(value.get("overlap")))
    return plan.shaped(TreeShape.of_children(value["children"])) if "children" in value else plan


def _tuples(value: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {name: tuple(entry) if isinstance(entry, list) else entry for name, entry in value.items()}


@dataclass(frozen=True)
class Profile:
    """What one run of `specrun tune` found.

    fingerprint: of everything that the figures depend on. identity: the parts of it, to tell what has changed.
    created: ISO 8601, UTC. settings: llama.cpp's, as measured. exact_up_to: tokens of a pass up to which logits are
    the same bits as one by one; 1 if not even two are. regime: where the weights are.
    """

    fingerprint: str
    identity: dict[str, Any]
    created: str
    target: str
    draft: str
    hardware: dict[str, Any]
    settings: LlamaSettings
    regime: str
    exact_up_to: int
    costs: CostModel
    acceptance: list[Acceptance]
    plans: list[TunedPlan]
    validation: list[dict[str, Any]] = field(default_factory=list)
    predictions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)
    picture: str = ""
    notices: list[str] = field(default_factory=list)

    def chooser(self) -> ByTemperature:
        """What follows the plans of this profile while generating."""
        plans = {}
        for tuned in self.plans:
            plans[tuned.temperature] = ProfiledPlan(
                tuned.plan, tuned.predicted_tokens_per_second, self.guide(tuned.temperature), tuned.other,
                tuned.other_tokens_per_second,
            )  # fmt: skip
        return ByTemperature(plans)

    def guide(self, temperature: float) -> Guide:
        """What a step at this temperature is weighed with, at its beginning."""
        tuned = self.at(temperature)
        rate = max(tuned.predicted_tokens_per_second, tuned.plain_tokens_per_second) / 1e3
        # A copy: it shifts with the texts that are written.
        calibration = self.acceptance_at(temperature).calibration.as_json() if self.acceptance else None
        return Guide(self.costs, Calibration.from_json(calibration) if calibration else None, rate)

    def without_draft(self, exact: bool) -> Profile:
        """What it says of the target alone: its settings and pass times, by which drafting from the text itself is
        weighed. exact: only in passes whose logits are bit-exact.
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
        """The plan measured nearest to `temperature`."""
        wanted = nearest(temperature, [tuned.temperature for tuned in self.plans])
        return next(tuned for tuned in self.plans if tuned.temperature == wanted)

    def acceptance_at(self, temperature: float) -> Acceptance:
        """What was measured nearest to `temperature`. Raises ValueError without a draft, where nothing was."""
        wanted = nearest(temperature, [found.temperature for found in self.acceptance])
        return next(found for found in self.acceptance if found.temperature == wanted)

    def candidates(self) -> tuple[Plan, ...]:
        """Every plan that may be followed."""
        plans = [plan for tuned in self.plans for plan in (tuned.plan, tuned.other) if plan]
        return tuple(dict.fromkeys(plans))

    def as_json(self) -> dict[str, Any]:
        first = self.plans[0].as_json()
        return {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "identity": self.identity,
            "created": self.created,
            "pair": {"target": self.target, "draft": self.draft},
            "hardware": self.hardware,
            "settings": asdict(self.settings),
            "regime": self.regime,
            "exact_up_to": self.exact_up_to,
            "tables": self.costs.as_json(),
            "acceptance": [acceptance.as_json() for acceptance in self.acceptance],
            "plan": first,
            "plans": [plan.as_json() for plan in self.plans],
            "validation": self.validation,
            "predictions": self.predictions,
            "tried": self.tried,
            "picture": self.picture,
            "notices": self.notices,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Profile:
        """Raises ProfileError for a value that is not that of `as_json`, or of another version."""
        try:
            if value["version"] != VERSION:
                raise ProfileError(f"a profile of version {value['version']}, not {VERSION}; run `specrun tune` again")
            return cls(
                value["fingerprint"],
                value["identity"],
                value["created"],
                value["pair"]["target"],
                value["pair"]["draft"],
                value["hardware"],
                LlamaSettings(**_tuples(value["settings"])),
                value["regime"],
                int(value["exact_up_to"]),
                CostModel.from_json(value["tables"]),
                [Acceptance.from_json(entry) for entry in value["acceptance"]],
                [TunedPlan.from_json(entry) for entry in value["plans"]],
                value["validation"],
                value["predictions"],
                value["tried"],
                value["picture"],
                value["notices"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProfileError("not a profile of `specrun tune`") from error

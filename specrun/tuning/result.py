"""What a run of `specrun tune` found, before it becomes a profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specrun.profiles.profile import TunedPlan
from specrun.speculation.method import Method
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.registry import METHODS
from specrun.tuning.acceptance_meter import Acceptance
from specrun.tuning.replay import Prediction
from specrun.tuning.validate import Validated


@dataclass
class Result:
    """What a run found. distributions: accepted lengths that the replays of each temperature's best plan had."""

    costs: CostModel
    exact_up_to: int
    acceptance: list[Acceptance]
    predictions: dict[float, list[Prediction]]
    validated: list[Validated]
    plans: list[TunedPlan]
    notices: list[str] = field(default_factory=list)


def predictions_json(result: Result) -> dict[str, Any]:
    """Predictions of all plans, by temperature."""
    return {
        str(temperature): [
            {
                "plan": str(p.plan),
                "method": p.plan.method.name,
                "budget": p.plan.budget,
                "depth": p.plan.depth,
                "tokens_per_second": round(p.tokens_per_second, 3),
                "tokens_per_pass": round(p.tokens_per_pass, 3),
                "accepted": list(p.accepted),
            }
            for p in found
        ]
        for temperature, found in result.predictions.items()
    }


def best_by_size(predictions: Sequence[dict[str, Any]], is_wanted: Callable[[Method], bool]) -> dict[int, float]:
    """The highest predicted tokens per second of the wanted methods' plans, by nodes of the tree."""
    best: dict[int, float] = {}
    for entry in predictions:
        if is_wanted(METHODS[entry["method"]]):
            best[entry["budget"]] = max(best.get(entry["budget"], 0.0), entry["tokens_per_second"])
    return best

"""Profiles to JSON values and back. Importing this module takes a tenth of a second, because it imports cattrs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from specrun.errors import ProfileError
from specrun.llama_settings import LlamaSettings
from specrun.profiles.profile import Acceptance, DamagedProfileError, Profile, TunedPlan
from specrun.profiles.tuning_rows import PredictionRow, TriedRing, TriedSettings, ValidationRow
from specrun.speculation.controllers.arm import ExpectedPlan
from specrun.speculation.method import Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostTable, Overhead, PassTime
from specrun.speculation.planning.pass_sizes import PassSizes
from specrun.speculation.registry import METHODS
from specrun.speculation.shape import TreeShape

VERSION = 3

# Decimals that are written, by class and field. Others are written as they are.
_DECIMALS: Mapping[type, Mapping[str, int]] = {
    PassTime: {"ms": 4, "spread": 4},
    Overhead: {"step": 5, "level": 5, "node": 5},
    TunedPlan: {"predicted_tokens_per_second": 3, "predicted_tokens_per_pass": 3, "plain_tokens_per_second": 3},
    PredictionRow: {"tokens_per_second": 3, "tokens_per_pass": 3, "error": 3},
    ValidationRow: {
        f"{what}{of}": 3 for what in ("predicted", "measured") for of in ("", "_tokens_per_pass", "_error")
    },
    TriedSettings: {"score": 6, "prompt_ms": 3},
    TriedRing: {},
}


def profile_to_json(profile: Profile) -> dict[str, Any]:
    """The profile as JSON values."""
    value = converter().unstructure(profile)
    pair = {"target": value.pop("target"), "draft": value.pop("draft")}
    # The first plan stands on its own as well, for programs that want a single one.
    return {"version": VERSION, "pair": pair, "tables": value.pop("costs"), **value, "plan": value["plans"][0]}


def profile_from_json(value: Any) -> Profile:
    """The inverse of `profile_to_json`.

    Raises DamagedProfileError for any other value, and ProfileError for one of another version.
    """
    try:
        version = value["version"]
        if version == VERSION:
            return converter().structure({**value, **value["pair"], "costs": value["tables"]}, Profile)
    except Exception as error:  # a foreign file may fail in any constructor
        raise DamagedProfileError("not a profile of `specrun tune`") from error
    raise ProfileError(f"a profile of version {version}, not {VERSION}; run `specrun tune` again")


@cache
def converter() -> Converter:
    """Converts dataclasses of measurements to JSON values and back."""
    converter = Converter(detailed_validation=False)
    # Classes come before those that contain them, whose generated functions keep the hooks that they find.
    converter.register_unstructure_hook(Plan, _plan_to_json)
    converter.register_structure_hook(Plan, _plan_from_json)
    converter.register_unstructure_hook(CostTable, lambda table: converter.unstructure(list(table.times)))
    converter.register_structure_hook(CostTable, lambda value, _: CostTable(converter.structure(value, list[PassTime])))
    converter.register_unstructure_hook(PassSizes, _sizes_to_json)
    converter.register_structure_hook(PassSizes, _sizes_from_json)
    converter.register_unstructure_hook(Calibration, _calibration_to_json)
    converter.register_structure_hook(Calibration, _calibration_from_json)
    converter.register_unstructure_hook(ExpectedPlan, _expected_to_json)
    converter.register_structure_hook(ExpectedPlan, _expected_from_json)
    for cls, decimals in _DECIMALS.items():
        rounded: dict[str, Any] = {}
        for name, ndigits in decimals.items():
            rounded[name] = override(unstruct_hook=partial(round, ndigits=ndigits))
        if cls in (TriedSettings, TriedRing):
            rounded["ms"] = override(unstruct_hook=lambda ms: {n: round(one, 3) for n, one in ms.items()})
        converter.register_unstructure_hook(cls, make_dict_unstructure_fn(cls, converter, **rounded))
    names: dict[str, Any] = {"n_positions": override(rename="positions")}
    converter.register_unstructure_hook(Acceptance, make_dict_unstructure_fn(Acceptance, converter, **names))
    converter.register_structure_hook(Acceptance, make_dict_structure_fn(Acceptance, converter, **names))
    # A setting that this version does not know may change what was measured.
    converter.register_structure_hook(
        LlamaSettings, make_dict_structure_fn(LlamaSettings, converter, _cattrs_forbid_extra_keys=True)
    )
    # The keys of a tuned plan's plan stand among its own.
    nested_to_json = converter.get_unstructure_hook(TunedPlan)
    nested_from_json = converter.get_structure_hook(TunedPlan)
    converter.register_unstructure_hook(TunedPlan, lambda tuned: _flat(nested_to_json(tuned)))
    converter.register_structure_hook(TunedPlan, lambda value, cls: nested_from_json({**value, "plan": value}, cls))
    return converter


def _flat(tuned: dict[str, Any]) -> dict[str, Any]:
    plan: dict[str, Any] = tuned.pop("plan")
    return plan | tuned


def _calibration_to_json(calibration: Calibration) -> dict[str, Any]:
    seen, accepted = calibration.counts
    return {"seen": seen.tolist(), "accepted": accepted.tolist()}


def _calibration_from_json(value: dict[str, Any], _type: type) -> Calibration:
    return Calibration(np.array(value["seen"], np.float64), np.array(value["accepted"], np.float64))


def _sizes_to_json(sizes: PassSizes) -> dict[str, int | bool]:
    in_order = {"in_order": True} if sizes.in_order else {}
    if sizes.is_single:
        return {"only": sizes.least, **in_order}
    value: dict[str, int | bool] = {"least": sizes.least, **in_order}
    if sizes.multiple > 1:
        value["multiple"] = sizes.multiple
    return value if sizes.most is None else value | {"most": sizes.most}


def _sizes_from_json(value: dict[str, Any], _type: type) -> PassSizes:
    in_order = bool(value.get("in_order"))
    numbers: dict[str, Any] = {name: int(number) for name, number in value.items() if name != "in_order"}
    sizes = PassSizes.only(numbers["only"]) if "only" in numbers else PassSizes(**numbers)
    return replace(sizes, in_order=in_order)


def _expected_to_json(expected: ExpectedPlan) -> dict[str, Any]:
    rates = {"tokens_per_second": round(expected.tokens_per_second, 3), "error": round(expected.error, 3)}
    return _plan_to_json(expected.plan) | rates


def _expected_from_json(value: dict[str, Any], _type: type) -> ExpectedPlan:
    rate, error = float(value["tokens_per_second"]), float(value["error"])
    return ExpectedPlan(_plan_from_json(value, Plan), rate, error)


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    value = {"method": plan.method.name, "budget": plan.budget, "depth": plan.depth, "width": plan.width}
    value["overlap"] = plan.overlap
    return value | ({"children": list(plan.shape.child_counts)} if plan.shape else {})


def _plan_from_json(value: dict[str, Any], _type: type) -> Plan:
    plan = Plan(METHODS[value["method"]], int(value["budget"]), int(value["depth"]), int(value["width"]))
    plan = replace(plan, overlap=bool(value.get("overlap")))
    return plan.shaped(TreeShape.of_children(value["children"])) if "children" in value else plan

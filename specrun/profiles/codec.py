"""Profiles to JSON values and back."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from specrun.errors import ProfileError
from specrun.kept_facts import fingerprint
from specrun.llama_settings import LlamaSettings
from specrun.profiles.profile import Profile, TunedPlan
from specrun.speculation.controllers.arm import ExpectedPlan
from specrun.speculation.method import Method, Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostTable, PassTime
from specrun.speculation.planning.pass_sizes import PassSizes
from specrun.speculation.registry import METHODS
from specrun.speculation.tree import TreeShape

if TYPE_CHECKING:
    from cattrs import Converter

VERSION = 4
_DECIMALS = 6  # of numbers that are written


def profile_to_json(profile: Profile) -> dict[str, Any]:
    """The profile as JSON values."""
    value = converter().unstructure(profile)
    pair = {name: value.pop(name) for name in ("target", "draft", "folders")}
    # The first plan stands on its own as well, for programs that want a single one.
    names = {"version": VERSION, "fingerprint": fingerprint(profile.identity), "pair": pair}
    return {**names, "tables": value.pop("costs"), **value, "plan": value["plans"][0]}


def profile_from_json(value: Any) -> Profile:
    """The inverse of `profile_to_json`.

    Raises ProfileError for any other value, and for one of another version.
    """
    try:
        version = value["version"]
        if version == VERSION:
            profile = converter().structure({**value, **value["pair"], "costs": value["tables"]}, Profile)
            profile.identity["files"][0]  # what each look for a profile compares
            return profile
    except Exception as error:  # a foreign file may fail in any constructor
        raise ProfileError("not a profile of `specrun tune`") from error
    raise ProfileError(f"a profile of version {version}, not {VERSION}")


@cache
def converter() -> Converter:
    """Converts dataclasses of measurements to JSON values and back."""
    from cattrs import Converter  # importing it takes a tenth of a second
    from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

    converter = Converter(detailed_validation=False)
    # Classes come before those that contain them, whose generated functions keep the hooks that they find.
    converter.register_unstructure_hook(float, lambda value: round(value, _DECIMALS))
    # What the machine and the files are compared by stays as it is.
    converter.register_unstructure_hook_func(lambda kind: kind == dict[str, Any], lambda value: value)
    converter.register_unstructure_hook(Method, lambda method: method.name)
    converter.register_structure_hook(Method, lambda name, _: METHODS[name])
    converter.register_unstructure_hook(TreeShape, lambda shape: list(shape.child_counts))
    converter.register_structure_hook(TreeShape, lambda counts, _: TreeShape.of_children(counts))
    children = override(rename="children", omit_if_default=True)
    converter.register_unstructure_hook(Plan, make_dict_unstructure_fn(Plan, converter, shape=children))
    converter.register_structure_hook(Plan, make_dict_structure_fn(Plan, converter, shape=children))
    converter.register_unstructure_hook(CostTable, lambda table: converter.unstructure(list(table.times)))
    converter.register_structure_hook(CostTable, lambda value, _: CostTable(converter.structure(value, list[PassTime])))
    converter.register_unstructure_hook(PassSizes, _sizes_to_json)
    fields_to_sizes = make_dict_structure_fn(PassSizes, converter)
    converter.register_structure_hook(PassSizes, lambda value, cls: fields_to_sizes(_sizes_fields(value), cls))
    names = ("seen", "accepted")
    converter.register_unstructure_hook(Calibration, lambda one: dict(zip(names, one.counts.tolist(), strict=True)))
    converter.register_structure_hook(
        Calibration, lambda value, _: Calibration(np.array([value[n] for n in names], float))
    )
    # A setting that this version does not know may change what was measured.
    converter.register_structure_hook(
        LlamaSettings, make_dict_structure_fn(LlamaSettings, converter, _cattrs_forbid_extra_keys=True)
    )
    _nest_plan(ExpectedPlan, converter)
    _nest_plan(TunedPlan, converter)
    return converter


def _nest_plan(cls: type, converter: Converter) -> None:
    """Let the keys of the plan stand among those of the object that has it."""
    to_json, from_json = converter.get_unstructure_hook(cls), converter.get_structure_hook(cls)
    converter.register_unstructure_hook(cls, lambda value: (fields := to_json(value)).pop("plan") | fields)
    converter.register_structure_hook(cls, lambda value, cls: from_json({**value, "plan": value}, cls))


def _sizes_to_json(sizes: PassSizes) -> dict[str, Any]:
    value = {"only": sizes.least, "in_order": sizes.in_order} if sizes.is_single else asdict(sizes)
    usual = {"multiple": 1, "most": None, "in_order": False}
    return {name: one for name, one in value.items() if name not in usual or one != usual[name]}


def _sizes_fields(value: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `_sizes_to_json`, by field."""
    return value | dict.fromkeys(("least", "multiple", "most"), value["only"]) if "only" in value else value

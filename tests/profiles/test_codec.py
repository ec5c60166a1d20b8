"""Profiles keep their JSON format: those that were saved before load, and nothing of them is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specrun.errors import ProfileError
from specrun.profiles.codec import converter, profile_from_json, profile_to_json
from specrun.speculation.planning.pass_sizes import PassSizes

# Written by `specrun tune --quick --json` before profiles had a codec; what later versions added or left out was mended
# by hand.
SAVED = Path(__file__).with_name("profile-version-4.json")
DELETED = object()


def saved() -> dict[str, Any]:
    return json.loads(SAVED.read_text(encoding="utf-8"))


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def assert_all_is_there(before: Any, after: Any, place: str = "") -> None:
    """Everything in `before` is in `after`, with the same value."""
    if isinstance(before, dict):
        for key, value in before.items():
            assert key in after, f"{place}/{key}"
            assert_all_is_there(value, after[key], f"{place}/{key}")
    elif isinstance(before, list):
        assert len(before) == len(after), place
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            assert_all_is_there(old, new, f"{place}/{i}")
    else:
        assert before == after, place


def test_a_profile_that_was_saved_before_loses_nothing() -> None:
    after = through_json(profile_to_json(profile_from_json(saved())))
    assert_all_is_there(saved(), after)
    assert through_json(profile_to_json(profile_from_json(after))) == after


def test_what_is_no_longer_known_is_left_out() -> None:
    """Plans said whether to draft during the target's passes, and profiles how streamed weights were read, how much
    passes differed, what specrun's own work took apart from them, and acceptance by rank beside the counts.
    """
    ring = {"n_slots": 3, "n_readers": 4, "request_bytes": 2**20}
    before = saved() | {"ring": ring, "tried_rings": [{"ring": ring, "ms": {"1": 9.5}}]}
    before["tables"]["overhead"] = {"step": 0.3, "level": 1.0, "node": 0.1}
    before["tables"]["target"][0]["spread"] = 0.5
    before["acceptance"][0] |= {"positional": [0.5, 0.2], "positions": 30}
    for plan in (before["plan"], *before["plans"]):
        for one in (plan, *plan["expected"]):
            one["overlap"] = True
    assert profile_to_json(profile_from_json(before)) == profile_to_json(profile_from_json(saved()))


@pytest.mark.parametrize("version", [1, 3, 5])
def test_a_profile_of_another_version_has_to_be_measured_again(version: int) -> None:
    with pytest.raises(ProfileError, match=f"of version {version}, not 4"):
        profile_from_json(saved() | {"version": version})


def test_values_have_types() -> None:
    profile = profile_from_json(saved())
    assert [plan.plan.method.name for plan in profile.plans] == ["off", "off"]
    assert profile.plans[0].expected[1].plan.shape is not None
    assert profile.tried[0].ms[16] == saved()["tried"][0]["ms"]["16"]
    assert profile.costs.draft is not None
    assert profile.costs.draft.ms(1, 64) == saved()["tables"]["draft"][0]["ms"]
    counts = saved()["acceptance"][1]["calibration"]["seen"]
    assert profile.acceptance_at(0.0).calibration.counts[0].tolist() == counts


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["identity"], 3),
        (["pair"], DELETED),
        (["settings", "flash_attn"], "sometimes"),
        (["settings", "warp"], 9),
        (["tables", "target"], []),
        (["tables", "target", 0, "ms"], "fast"),
        (["tables"], {}),
        (["exact_sizes"], {"least": float("inf")}),
        (["exact_sizes"], {"least": 3, "multiple": 2}),
        (["acceptance", 0, "calibration", "seen"], [1.0]),
        (["acceptance", 0, "calibration"], DELETED),
        (["plans", 0, "method"], "magic"),
        (["plans", 0, "budget"], 10**6),
        (["plans", 0, "expected", 1, "children"], [5, 0]),
        (["tried", 0, "ms"], {"one": 1.0}),
    ],
)
def test_a_damaged_profile_is_refused(keys: list[Any], value: Any) -> None:
    damaged = saved()
    place = damaged
    for key in keys[:-1]:
        place = place[key]
    if value is DELETED:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    with pytest.raises(ProfileError, match="not a profile of `specrun tune`"):
        profile_from_json(damaged)


@pytest.mark.parametrize(
    ("sizes", "value"),
    [
        (PassSizes(8, 4), {"least": 8, "multiple": 4}),
        (PassSizes.only(16), {"only": 16}),
        (PassSizes(16, 16, 16, in_order=True), {"only": 16, "in_order": True}),
        (PassSizes(2, 1, 8, in_order=True), {"least": 2, "most": 8, "in_order": True}),
    ],
    ids=str,
)
def test_classes_of_sizes_are_few_words(sizes: PassSizes, value: dict[str, Any]) -> None:
    assert through_json(converter().unstructure(sizes)) == value
    assert converter().structure(value, PassSizes) == sizes


@pytest.mark.slow
def test_the_codecs_library_is_imported_only_when_a_profile_is_read_or_written() -> None:
    code = "import sys, specrun.cli.app, specrun.loading.opening; sys.exit('cattrs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_profile_that_compared_other_types_still_loads() -> None:
    other = {"name": "Q4_0", "gain": 1.4, "error": 0.1, "tokens_per_second": 9.0, "ratios": {"1": 0.7}}
    value = saved() | {"other_types": [other], "other_types_left_out": "--quick leaves it out"}
    assert profile_to_json(profile_from_json(value)) == profile_to_json(profile_from_json(saved()))

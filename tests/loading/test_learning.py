"""What runs of `auto` learn is kept beside the profiles, and changes no text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specrun
from specrun.loading import learning
from specrun.profiles import profile_files
from specrun.profiles.profile import Profile
from specrun.speculation.controllers.auto import Auto
from tests.conftest import SpecrunHere

PROMPT = "def read_config(path):\n"


def written(temp: float = 0.0, **options: Any) -> tuple[str, specrun.Model]:
    """The text of a run, and its model, which is closed."""
    with specrun.load(threads=1, ctx_size=512, **options) as model:
        text = model.generate(PROMPT, raw=True, max_tokens=48, temp=temp).text
    return text, model


def learned() -> list[Profile]:
    return [profile for profile in profile_files.saved(with_learned=True) if profile.origin == "learned"]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.slow
def test_the_second_run_begins_with_what_the_first_learned_and_writes_the_same_text() -> None:
    text, first = written()
    (kept,) = learned()
    assert kept.draft
    assert kept.costs.target.sizes[0] == 1
    assert [tuned.temperature for tuned in kept.plans] == [0.0]
    again, second = written()
    assert text == again == written(speculate="off")[0]
    for model, knew in ((first, False), (second, True)):
        chooser = model.plans.auto(0.0)
        assert isinstance(chooser, Auto)
        assert chooser.guide.knows_plain == knew
    assert len(learned()) == 1


@pytest.mark.slow
def test_a_run_at_another_temperature_keeps_what_was_learned_at_the_first() -> None:
    written()
    (greedy,) = learned()
    written(temp=0.8)
    (both,) = learned()
    assert [tuned.temperature for tuned in both.plans] == [0.8, 0.0], "what was learned last comes first"
    assert both.at(0.0) == greedy.at(0.0)
    assert np.array_equal(both.acceptance[1].calibration.counts, greedy.acceptance[0].calibration.counts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"learn": False}, {"speculate": "off"}, {"speculate": "tree"}, {"method": "chain"}]
)
def test_runs_that_shall_not_learn_keep_nothing(options: dict[str, Any]) -> None:
    written(**options)
    assert learned() == []


@pytest.mark.slow
def test_without_learning_nothing_is_begun_with() -> None:
    written()
    _, model = written(learn=False)
    chooser = model.plans.auto(0.0)
    assert isinstance(chooser, Auto)
    assert not chooser.guide.knows_plain


@pytest.mark.slow
def test_bounds_hold_and_are_not_mixed_with_plans_of_other_bounds() -> None:
    written()
    with specrun.load(threads=1, ctx_size=512, budget=4, depth=2) as model:
        assert {plan.budget for plan in model.plans.candidates} == {4, 1}
        assert max(plan.depth for plan in model.plans.candidates) == 2
        assert model.generate(PROMPT, raw=True, max_tokens=16, temp=0).token_ids


@pytest.mark.slow
def test_a_run_that_cannot_keep_what_it_learned_says_so_and_goes_on(data_dir: Path) -> None:
    data_dir.write_text("a file where the folder should be")
    text, model = written()
    assert text
    assert any("is not kept" in notice for notice in model.notices)


@pytest.mark.slow
@pytest.mark.parametrize("content", ['{"version": 2, "pair"', "[" * 100_000, '{"version": 4}', ""])
def test_a_damaged_file_is_set_aside_named_and_made_again(data_dir: Path, content: str) -> None:
    text, _ = written()
    (path,) = (data_dir / "profiles" / "learned").iterdir()
    path.write_text(content)
    again, model = written()
    aside = path.with_name(f"{path.name}.damaged")
    assert again == text
    assert any(str(aside) in notice for notice in model.notices)
    assert aside.read_text() == content
    assert len(learned()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--speculate", "off"]])
def test_a_damaged_tuned_profile_is_set_aside_and_named(here: SpecrunHere, options: list[str]) -> None:
    assert here("generate", PROMPT, "--raw", "-n", "48").code == 0
    (kept,) = learned()
    path = profile_files.save(replace(kept, origin="tuned"))
    path.write_text("{")
    result = here("generate", PROMPT, "--raw", "-n", "8", "--no-learn", *options)
    aside = path.with_name(f"{path.name}.damaged")
    assert result.code == 0
    assert str(aside) in result.stderr
    assert aside.read_text() == "{"
    assert "damaged" not in here("generate", PROMPT, "--raw", "-n", "8", "--no-learn", *options).stderr


@pytest.mark.slow
def test_what_was_learned_with_other_settings_is_not_begun_with() -> None:
    written()
    (kept,) = learned()
    other = replace(kept, settings=replace(kept.settings, repack=True))
    profile_files.save(other)
    _, model = written()
    assert not model.plans.auto(0.0).guide.knows_plain  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_tuned_profile_is_never_replaced_and_takes_the_place_of_a_learned_one() -> None:
    written()
    (kept,) = learned()
    path = profile_files.save(replace(kept, origin="tuned"))
    before = path.read_text()
    assert learned() == []
    written()
    assert path.read_text() == before
    assert learned() == []


@pytest.mark.slow
def test_long_lived_models_keep_it_between_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "_SECONDS_BETWEEN", 0.0)
    with specrun.load(threads=1, ctx_size=512) as model:
        model.generate(PROMPT, raw=True, max_tokens=32, temp=0)
        assert learned() == []
        model.generate(PROMPT, raw=True, max_tokens=32, temp=0)
        assert len(learned()) == 1


@pytest.mark.slow
def test_commands_show_list_and_forget_it(here: SpecrunHere) -> None:
    assert here("generate", PROMPT, "--raw", "-n", "32").code == 0
    shown = here("tune", "--show", "--json")
    assert json.loads(shown.stdout)["origin"] == "learned"
    assert "learned while writing" in here("tune", "--show").stdout
    assert "while writing" in here("tune", "--list").stdout
    assert here("tune", "--forget").code == 0
    assert learned() == []
    assert here("generate", PROMPT, "--raw", "-n", "32", "--no-learn").code == 0
    assert learned() == []

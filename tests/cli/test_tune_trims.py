"""`specrun tune` measures the fastest draft with fewer tokens, too, and keeps that where it is faster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specrun.catalog import made
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.pairs import trimmed_in
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions
from specrun.profiles.codec import profile_from_json
from specrun.tuning import tune_pair
from tests.conftest import SpecrunHere
from tests.models import random_llama

PROFILE = profile_from_json(json.loads((Path(__file__).parents[1] / "profiles" / "profile-version-4.json").read_text()))
WRITTEN = [*range(2000), 20_000]
N_KEPT = 8192


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target, for which a draft with 22,048 tokens was made."""
    target = random_llama(tmp_path / "target.gguf", vocab_extra=20_000, n_layer=4)
    draft = random_llama(tmp_path / "draft.gguf", vocab_extra=20_000)
    made.register(target, made.MadeDraft(draft, "q2_k"))
    return target


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Tokens/s with the `whole` draft and with the `trimmed` one, in place of measurements. Tells who was measured."""
    rates = {"whole": 5.0}

    def measured(options: RunOptions, identity: Mapping[str, Any], *_: object) -> tuple[Any, Any, list[int]]:
        assert options.draft
        rate = rates["trimmed" if trimmed_in(GgufFile.read(options.draft)) else "whole"]
        plans = [replace(p, predicted_tokens_per_second=rate, plain_tokens_per_second=4.0) for p in PROFILE.plans]
        own = {"identity": dict(identity)}
        return replace(PROFILE, plans=plans, **own), plan_load(options).placement, WRITTEN

    monkeypatch.setattr(tune_pair, "tune_pair", measured)
    return rates


@pytest.mark.slow
def test_where_it_is_faster_it_drafts_from_then_on(here: SpecrunHere, target: Path, rates: dict[str, float]) -> None:
    rates["trimmed"] = 9.0
    result = here("tune", "--target", str(target))
    assert result.code == 0, result.stderr
    name = f"draft.gguf trimmed to {N_KEPT} tokens"
    assert f"9.00 with {name}; from now on {name} drafts" in result.stderr.replace(str(target.parent) + "/", "")
    (trimmed,) = made.trimmed_drafts(target)
    fastest = made.find_fastest(target)
    assert fastest
    assert fastest.path == trimmed
    described = trimmed_in(GgufFile.read(trimmed))
    assert described
    assert len(described.tokens) == N_KEPT
    assert 20_000 in described.tokens, "the target has written it"
    # The next time both are here.
    assert here("tune", "--target", str(target)).code == 0
    assert made.trimmed_drafts(target) == [trimmed]


@pytest.mark.slow
def test_where_it_is_not_it_is_deleted(here: SpecrunHere, target: Path, rates: dict[str, float]) -> None:
    rates["trimmed"] = 4.9
    result = here("tune", "--target", str(target))
    assert result.code == 0, result.stderr
    assert "4.90 with" in result.stderr
    assert made.trimmed_drafts(target) == []
    fastest = made.find_fastest(target)
    assert fastest
    assert fastest.path == target.with_name("draft.gguf")


@pytest.mark.slow
@pytest.mark.usefixtures("rates")
@pytest.mark.parametrize("options", [("--quick",), ("--draft", "DRAFT")], ids=["quick", "named"])
def test_a_quick_run_and_a_named_draft_trim_nothing(here: SpecrunHere, target: Path, options: tuple[str, ...]) -> None:
    given = [option.replace("DRAFT", str(target.with_name("draft.gguf"))) for option in options]
    result = here("tune", "--target", str(target), *given)
    assert result.code == 0, result.stderr
    assert made.trimmed_drafts(target) == []
    assert "trimmed" not in result.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("rates")
def test_a_draft_that_cannot_be_written_is_left_out(
    here: SpecrunHere, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specrun.making.trimming._copy", full)
    result = here("tune", "--target", str(target))
    assert result.code == 0, result.stderr
    assert "was not measured with fewer tokens: " in result.stderr
    assert "No space left on device" in result.stderr
    assert made.trimmed_drafts(target) == []

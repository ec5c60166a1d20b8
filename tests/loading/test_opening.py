"""Where experts are read from disk, a draft model is loaded only if a profile follows a plan with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.hardware.memory import Memory
from specrun.loading.opening import GAINS_NOTHING, LEFT_OUT
from specrun.loading.opening import for_experts as of_plan
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.method import OFF
from tests.models import random_qwen3_moe
from tests.profiles.test_profile import ADAPTIVE, made


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    """What `auto` asks for, with a mixture for which there is not enough memory."""
    monkeypatch.setattr(Memory, "read", lambda: Memory(1000, 1000))
    path = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=4, n_expert=8)
    return RunOptions(path, embedded.DRAFT, SpeculationOptions().plans())


def for_experts(options: RunOptions, temperature: float | None = None) -> tuple[RunOptions, str | None]:
    plan, why = of_plan(options, plan_load(options), temperature)
    return plan.options, why


def test_without_a_profile_the_memory_is_for_experts(options: RunOptions) -> None:
    assert options.drafts
    alone, why = for_experts(options)
    assert why == LEFT_OUT
    assert alone.draft is None
    assert [plan.method for plan in alone.plans] == [DRAFTLESS, OFF]


def test_the_draft_stays_where_it_takes_nothing_from_experts(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = replace(options, target=embedded.TARGET)
    assert for_experts(dense) == (dense, None)
    monkeypatch.setattr(Memory, "read", lambda: Memory(10**11, 10**11))
    assert for_experts(options) == (options, None)


def test_the_draft_stays_where_a_plan_with_it_is_asked_for(options: RunOptions) -> None:
    chain = CHAIN.plan(depth=4)
    for wanted in (replace(options, plans=(chain,), follow=False), replace(options, largest=chain)):
        assert for_experts(wanted) == (wanted, None)


def test_a_profile_decides(options: RunOptions) -> None:
    """One greedy plan of this profile drafts, and nothing pays when sampling."""
    profile = made()
    assert profile.plans[0].plan == ADAPTIVE
    tuned = replace(options, profile=profile)
    assert for_experts(tuned) == for_experts(tuned, 0.0) == (tuned.with_profile, None)
    assert not profile.at(0.8).plan.drafts
    assert for_experts(tuned, 0.8)[0].draft is None, "no text to come is drafted for"
    off = replace(profile, plans=[replace(plan, plan=OFF.plan()) for plan in profile.plans])
    alone, why = for_experts(replace(options, profile=off))
    assert why == GAINS_NOTHING
    assert alone.draft is None
    assert alone.profile
    assert alone.profile.settings == profile.settings
    assert not alone.with_profile.drafts

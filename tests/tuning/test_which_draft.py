"""Which of several drafts is kept for a target."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.hardware.placement import Placement
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions
from specrun.profiles.codec import profile_from_json
from specrun.speculation.method import OFF
from specrun.tuning.tune_pair import TunedDraft, fastest_of

OPTIONS = RunOptions(embedded.TARGET, None, (OFF.plan(),))
PROFILE = profile_from_json(json.loads((Path(__file__).parents[1] / "profiles" / "profile-version-4.json").read_text()))


PLACEMENT = plan_load(OPTIONS).placement


def tuned(
    name: str, rate: float, plain: float = 5.0, first: TunedDraft | None = None, placement: Placement = PLACEMENT
) -> TunedDraft:
    plans = [replace(plan, predicted_tokens_per_second=rate, plain_tokens_per_second=plain) for plan in PROFILE.plans]
    return TunedDraft(name, OPTIONS, replace(PROFILE, plans=plans), placement, first)


def test_the_rate_is_the_mean_over_the_temperatures() -> None:
    two = [
        replace(PROFILE.plans[0], temperature=t, predicted_tokens_per_second=rate, plain_tokens_per_second=plain)
        for t, rate, plain in ((0.0, 8.0, 4.0), (0.8, 2.0, 1.0))
    ]
    assert TunedDraft("a", OPTIONS, replace(PROFILE, plans=two), PLACEMENT).rate == pytest.approx(4.0)


@pytest.mark.parametrize(("rates", "best"), [((5, 9, 7), 1), ((5, 5.1, 4), 0), ((5, 5.1, 5.2), 2)])
def test_the_fastest_is_kept_and_of_equal_ones_the_first(rates: tuple[float, ...], best: int) -> None:
    drafts = [tuned(str(i), rate) for i, rate in enumerate(rates)]
    assert fastest_of(drafts) is drafts[best]


def test_a_machine_that_became_faster_speaks_for_no_draft() -> None:
    first = tuned("a", rate=10.0, plain=5.0)
    second = tuned("b", rate=15.0, plain=10.0, first=first)  # all passes take half as long
    assert second.rate == pytest.approx(7.5)
    assert fastest_of([first, second]) is first


def test_a_draft_that_takes_the_targets_place_is_compared_as_measured() -> None:
    first = tuned("a", rate=10.0, plain=5.0)
    elsewhere = replace(PLACEMENT, regime="partly in VRAM")
    second = tuned("b", rate=15.0, plain=10.0, first=first, placement=elsewhere)
    assert second.rate == pytest.approx(15.0)
    assert fastest_of([first, second]) is second

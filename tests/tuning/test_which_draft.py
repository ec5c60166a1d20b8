"""Which of several drafts is kept for a target."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.engine.placing import placement_request
from specrun.engine.run_options import RunOptions
from specrun.hardware.placement import place
from specrun.profiles.codec import profile_from_json
from specrun.speculation.method import OFF
from specrun.tuning.which_draft import TunedDraft, fastest_of

OPTIONS = RunOptions(embedded.TARGET, None, (OFF.plan(),))
PROFILE = profile_from_json(json.loads((Path(__file__).parents[1] / "profiles" / "profile-version-3.json").read_text()))


def tuned(name: str, rate: float) -> TunedDraft:
    plans = [replace(plan, predicted_tokens_per_second=rate) for plan in PROFILE.plans]
    placement = place(placement_request(OPTIONS, ()))
    return TunedDraft(name, OPTIONS, replace(PROFILE, plans=plans), placement)


def test_the_rate_is_the_mean_over_the_temperatures() -> None:
    two = [
        replace(PROFILE.plans[0], temperature=temperature, predicted_tokens_per_second=rate)
        for temperature, rate in ((0.0, 8.0), (0.8, 2.0))
    ]
    assert replace(tuned("a", 1.0), profile=replace(PROFILE, plans=two)).rate == pytest.approx(4.0)


@pytest.mark.parametrize(("rates", "best"), [((5, 9, 7), 1), ((5, 5.1, 4), 0), ((5, 5.1, 5.2), 2)])
def test_the_fastest_is_kept_and_of_equal_ones_the_first(rates: tuple[float, ...], best: int) -> None:
    drafts = [tuned(str(i), rate) for i, rate in enumerate(rates)]
    assert fastest_of(drafts) is drafts[best]

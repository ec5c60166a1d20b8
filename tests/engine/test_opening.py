"""What is said where other programs hold the cores that a model's threads need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import specrun
from specrun.engine import opening
from specrun.engine.run_options import RunOptions
from specrun.hardware.other_load import LoadWatch, OtherLoad
from specrun.hardware.placement import Regime, place
from specrun.llama_settings import LlamaSettings
from specrun.speculation.method import OFF
from tests.hardware.test_placement import DENSE, GB, request
from tests.profiles.test_profile import made

OPTIONS = RunOptions(Path("target.gguf"), None, (OFF.plan(),))


class Watch(LoadWatch):
    """One that has seen half of the cores held by others."""

    seconds = 1.0  # type: ignore[assignment]

    def so_far(self) -> OtherLoad:
        return OtherLoad(2.0, 4)


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "usable_cores", lambda: 4)


def test_it_says_how_many_threads_have_cores_of_their_own() -> None:
    (notice,) = opening.busy_cores(Watch(), OPTIONS, None)
    assert "hold 2.0 of 4 cores" in notice
    assert "`--threads 2`" in notice


def test_it_says_nothing_of_threads_that_someone_chose() -> None:
    assert opening.busy_cores(Watch(), replace(OPTIONS, settings=LlamaSettings(threads=4)), None) == []
    tuned = replace(made(), settings=LlamaSettings(threads=4))
    assert opening.busy_cores(Watch(), replace(OPTIONS, profile=tuned), None) == []
    assert len(opening.busy_cores(Watch(), replace(OPTIONS, profile=made()), None)) == 1


@pytest.mark.parametrize(("regime", "n_notices"), [("in VRAM", 0), ("partly in VRAM", 1), ("in RAM", 1)])
def test_it_says_nothing_of_a_target_that_the_gpu_computes(regime: Regime, n_notices: int) -> None:
    placement = place(request(DENSE, 10 * GB))
    assert len(opening.busy_cores(Watch(), OPTIONS, replace(placement, regime=regime))) == n_notices


def test_it_says_nothing_after_too_short_a_look_or_where_cores_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "so_far", lambda _: OtherLoad(0.2, 4))
    assert opening.busy_cores(Watch(), OPTIONS, None) == []
    assert opening.busy_cores(LoadWatch(), OPTIONS, None) == []


def test_a_loaded_model_has_the_notice_once(monkeypatch: pytest.MonkeyPatch, demo_target: Path) -> None:
    monkeypatch.setattr(opening, "LoadWatch", Watch)
    with specrun.load(demo_target, "none", speculate="off") as model:
        assert sum("--threads 2" in notice for notice in model.notices) == 1
    with specrun.load(demo_target, "none", speculate="off", threads=1) as model:
        assert not any("--threads" in notice for notice in model.notices)

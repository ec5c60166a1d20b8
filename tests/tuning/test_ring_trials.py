"""How the way to read streamed weights is chosen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specrun.engine import residency
from specrun.engine.model import Model
from specrun.engine.run_options import RunOptions
from specrun.hardware.residency import RingSettings
from specrun.llama_settings import LlamaSettings
from specrun.long_run import Run
from specrun.profiles.profile import TriedRing
from specrun.speculation.method import OFF
from specrun.tuning import ring_trials
from tests.models import random_llama
from tests.streams import planned


def timed(ms: Callable[[RingSettings], float | None]) -> tuple[RingSettings, list[RingSettings]]:
    """What is chosen where a pass takes what a function says, and what was tried."""

    def one(ring: RingSettings) -> TriedRing | None:
        took = ms(ring)
        return None if took is None else TriedRing(ring, {1: took})

    best, tried = ring_trials.fastest(one, Run())
    return best, [trial.ring for trial in tried]


def test_what_is_faster_stays_and_the_rest_is_tried_on_top_of_it() -> None:
    best, tried = timed(lambda ring: 100.0 - 10 * (ring.n_readers == 4) - 10 * (ring.request_bytes == 2**24))
    assert best == RingSettings(2, 4, 2**24)
    assert tried[0] == RingSettings()
    assert RingSettings(3, 4) in tried
    assert RingSettings(4, 4, 2**24) in tried


def test_what_is_hardly_faster_is_not_taken() -> None:
    assert timed(lambda ring: 98.0 if ring != RingSettings() else 100.0)[0] == RingSettings()


def test_what_was_faster_only_once_is_not_taken() -> None:
    n_timed: dict[RingSettings, int] = {}

    def luck(ring: RingSettings) -> float:
        n_timed[ring] = n_timed.get(ring, 0) + 1
        return 80.0 if n_timed[ring] == 1 and ring.n_readers == 4 else 110.0 if ring.n_readers == 4 else 90.0

    assert timed(luck)[0] == RingSettings()
    assert n_timed[RingSettings(n_readers=4)] == 2


def test_slots_that_the_memory_has_no_room_for_are_left_out() -> None:
    best, tried = timed(lambda ring: None if ring.n_slots > 2 else 100.0)
    assert best == RingSettings()
    assert {ring.n_slots for ring in tried} == {2}


def test_without_time_the_defaults_are_taken() -> None:
    best, tried = ring_trials.fastest(lambda ring: TriedRing(ring, {1: 1.0}), Run().stage(-1))
    assert (best, [trial.ring for trial in tried]) == (RingSettings(), [RingSettings()])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="weights are streamed on Linux only")
def test_a_real_model_uses_what_was_chosen(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = random_llama(made / "ring-trials.gguf", n_layer=7)
    plan = planned(path, 2).plan
    monkeypatch.setattr(residency, "room_in_ram", lambda *_: plan.held_bytes)
    options = RunOptions(path, None, (OFF.plan(),), settings=LlamaSettings(threads=1))
    with Model(options) as model:
        expected = model.generate("def", max_tokens=8).token_ids
        best, tried = ring_trials.choose(model, "def read(path):\n", Run())
        assert len(tried) == 7
        assert all(set(trial.ms) == {1} for trial in tried), "the context has room for no more rows"
        assert model.residency.n_slots == best.n_slots
        assert model.generate("def", max_tokens=8).token_ids == expected

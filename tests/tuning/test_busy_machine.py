"""What `specrun tune` says of other programs that compute while it measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specrun.llama_settings import LlamaSettings
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions, identity_of
from specrun.long_run import Run
from specrun.profiles.codec import profile_from_json, profile_to_json
from specrun.speculation.method import OFF
from specrun.tuning import tune_pair, unfinished
from specrun.tuning.tuner import EFFORTS, Effort
from specrun.tuning.unfinished import UnfinishedRun, key_of
from specrun.views import measurements, output
from tests.other_load import Busy, others_hold
from tests.profiles.test_profile import made


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Busy:
    busy = others_hold(0.0, (unfinished, tune_pair), monkeypatch)
    monkeypatch.setattr(tune_pair, "allowed_cores", lambda: [0, 1])
    monkeypatch.setattr(tune_pair, "usable_cores", lambda: 2)
    return busy


def test_the_busiest_stage_counts_also_of_an_earlier_run_and_of_another_draft(busy: Busy) -> None:
    first = UnfinishedRun({"of": "this"}, "key")
    for busy.cores, most in ((0.2, 0.2), (1.0, 1.0), (0.0, 1.0)):
        first.save()
        assert first.stages.other_load == most
    assert UnfinishedRun({"of": "this"}, "key").stages.other_load == 1.0
    another = UnfinishedRun({"of": "another draft"}, "key")
    another.take_target(made(other_load=1.0))
    another.save()
    assert another.stages.other_load == 1.0


@pytest.mark.usefixtures("busy")
def test_only_cores_that_passes_want_are_worth_a_sentence(random_model: Path) -> None:
    placement = plan_load(RunOptions(random_model, None, (OFF.plan(),))).placement
    (notice,) = tune_pair.busy_notices(1.0, None, placement)
    assert notice.startswith("other programs held 1.0 of 2 cores while this target was measured")
    assert "run `specrun tune` again" in notice
    assert tune_pair.busy_notices(0.4, None, placement) == []
    assert tune_pair.busy_notices(1.0, 1, placement) == []
    assert tune_pair.busy_notices(1.0, None, replace(placement, regime="in VRAM")) == []


@pytest.mark.slow
def test_the_profile_keeps_it_and_the_report_says_it(
    busy: Busy, random_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EFFORTS, "quick", Effort(0.5, 1, 1, 8))
    monkeypatch.setattr(tune_pair, "_choose_settings", lambda *_: (LlamaSettings(), [], {}))
    busy.cores = 1.0
    options = RunOptions(random_model, None, (OFF.plan(),), ctx_size=256)
    profile, _ = tune_pair.tune_pair(options, "quick", [0.0], None, False, Run())
    assert profile.other_load == 1.0
    kept = profile_from_json(profile_to_json(profile))
    output.print_table(measurements.render(kept))
    assert "note: other programs held 1.0 of 2 cores" in " ".join(capsys.readouterr().out.split())


def test_it_is_said_before_anything_is_measured(
    busy: Busy, random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def said(options: RunOptions) -> list[str]:
        notes: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            tune_pair.tune_pair(options, "quick", [0.0], None, False, Run(note=notes.append))
        return notes

    monkeypatch.setattr(tune_pair, "_choose_settings", interrupted)
    options = RunOptions(random_model, None, (OFF.plan(),))
    assert said(options) == []
    busy.cores = 1.0
    (note,) = said(options)
    assert note.startswith("other programs hold 1.0 of 2 cores (make (12)), so what is measured now holds for a busy")
    assert said(replace(options, settings=LlamaSettings(threads=1))) == []
    plan = plan_load(options)
    in_vram = replace(plan, placement=replace(plan.placement, regime="in VRAM"))
    with monkeypatch.context() as patch:
        patch.setattr(tune_pair, "plan_load", lambda _: in_vram)
        assert said(options) == []
    UnfinishedRun(identity_of(options), key_of("quick", [0.0], None, False)).save()
    assert said(options) == [], "the run before, which had to go on in another process, said it"

"""Profiles are written whole, read back, found by fingerprint, and told apart when something has changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specrun import kept_facts
from specrun.catalog import embedded
from specrun.errors import ProfileError
from specrun.llama_settings import LlamaSettings
from specrun.loading import exact_passes, opening, outdated
from specrun.loading.learning import choosers
from specrun.loading.run_options import RunOptions, identity_of
from specrun.profiles import profile_files as storage
from specrun.profiles.codec import profile_to_json
from specrun.profiles.profile import Acceptance, Profile, TunedPlan, nearest
from specrun.speculation.controllers.arm import ExpectedPlan
from specrun.speculation.controllers.auto import Auto
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE
from specrun.speculation.method import OFF
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY, PassSizes

ADAPTIVE = ADAPTIVE.plan(32, 16, 8)


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECRUN_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


IDENTITY = {"files": ["t", "d"], "llama.cpp": "1", "memory": 4}


def made(name: str = "", **changes: object) -> Profile:
    """A profile of a machine on which trees pay greedily and nothing pays when sampling; each name has its own file."""
    calibration = Calibration()
    calibration.count(1, np.array([0.6, 0.3]), 0)
    calibration = calibration.with_run()
    profile = Profile(
        identity=IDENTITY | ({"context": name} if name else {}),
        created="2026-01-01T00:00:00+00:00",
        target="target.gguf",
        draft="draft.gguf",
        hardware={"summary": {"cpu": "a processor, 2 cores"}},
        settings=LlamaSettings(repack=True, tensor_split=(3.0, 1.0)),
        regime="in RAM: 1.00 GB",
        exact_sizes=ANY_SIZE,
        pads=True,
        costs=CostModel(
            CostTable([PassTime(1, 64, 100.0), PassTime(32, 64, 150.0)]),
            CostTable([PassTime(1, 64, 2.0)]),
        ),
        acceptance=[Acceptance(t, calibration) for t in (0.0, 0.8)],
        plans=[
            TunedPlan(
                0.0,
                ADAPTIVE,
                25.0,
                3.1,
                10.0,
                [ExpectedPlan(ADAPTIVE, 25.0, 1.5), ExpectedPlan(OFF.plan(), 10.0, 0.25)],
            ),
            TunedPlan(
                0.8,
                OFF.plan(),
                10.0,
                1.0,
                10.0,
                [ExpectedPlan(OFF.plan(), 10.0, 0.25), ExpectedPlan(CHAIN.plan(depth=2), 9.0, 0.5)],
            ),
        ],
    )
    return replace(profile, **changes)  # type: ignore[arg-type]


def autos(profile: Profile) -> dict[float, Auto]:
    """What chooses among the profile's plans in a run that begins with it."""
    return choosers(profile.candidates(), profile, profile.padding)


def found(identity: dict[str, object]) -> tuple[Profile | None, list[str]]:
    """The tuned profile, and what was said."""
    said: list[str] = []
    return storage.find(identity, said.append), said


def test_a_profile_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = storage.save(made())
    kept, said = found(IDENTITY)
    assert kept
    assert json.dumps(profile_to_json(kept)) == json.dumps(profile_to_json(made()))
    assert kept.plans[0].expected == made().plans[0].expected
    assert (found(IDENTITY | {"memory": 8}), said) == ((None, []), [])
    assert list(path.parent.iterdir()) == [path], "nothing else is left behind"
    storage.export(made(), tmp_path / "profile.json")
    assert json.dumps(profile_to_json(storage.load(tmp_path / "profile.json"))) == json.dumps(profile_to_json(made()))


def test_its_chooser_follows_its_plans() -> None:
    storage.save(made())
    profile, _ = found(IDENTITY)
    assert profile
    assert set(profile.candidates()) == {ADAPTIVE, OFF.plan(), CHAIN.plan(depth=2)}
    chosen = autos(profile)
    assert chosen[0.0].held == ADAPTIVE
    assert chosen[0.8].held == OFF.plan()
    assert profile.guide(0.0).rate == pytest.approx(25.0 / 1e3, rel=0.02)


def test_a_text_follows_the_nearest_measured_temperature() -> None:
    assert [nearest(t, [0.8, 0.0]) for t in (0.0, 0.1, 0.8, 2.0)] == [0.0, 0.8, 0.8, 0.8]


def test_its_chooser_begins_with_the_chosen_plan_even_if_a_more_cautious_one_is_as_fast_within_the_errors() -> None:
    """`specrun tune` compares plans on the same texts, so it knows more than the errors of the rates tell."""
    expected = [ExpectedPlan(ADAPTIVE, 10.5, 1.0), ExpectedPlan(OFF.plan(), 10.0, 1.0)]
    chosen = TunedPlan(0.0, ADAPTIVE, 10.5, 1.1, 10.0, expected)
    assert autos(made(plans=[chosen]))[0.0].held == ADAPTIVE
    assert autos(made(plans=[replace(chosen, plan=OFF.plan())]))[0.0].held == OFF.plan()


@pytest.mark.parametrize(("pads", "plan"), [(False, (32, 31)), (True, (8, 7))])
def test_of_a_pair_the_target_alone_is_known_as_well(pads: bool, plan: tuple[int, int]) -> None:
    profile = made(exact_sizes=PassSizes(1, 1, 8), pads=pads).without_draft()
    assert profile.settings == made().settings
    chooser = autos(profile)[0.8]
    assert (chooser.held.method.name, chooser.held.budget, chooser.held.depth) == ("draftless", *plan)
    assert chooser.guide.rate == pytest.approx(10.0 / 1e3, rel=0.06), "hardly more than plain decoding is promised"
    assert profile.costs.draft is None
    assert profile.candidates() == (chooser.held, OFF.plan())


def test_where_no_tree_is_exact_the_target_alone_decodes_plainly() -> None:
    chooser = autos(made(exact_sizes=PLAIN_ONLY, pads=True).without_draft())[0.0]
    assert chooser.plan() == OFF.plan()


def test_plans_reckon_with_the_times_of_padded_passes() -> None:
    profile = made(exact_sizes=PassSizes(16, 16), pads=True)
    assert exact_passes.of_profile(profile).cost == pytest.approx(profile.costs.target.ms(16, 64) / 100.0 - 1)
    row = profile.guide(0.0).target_row(64)
    assert row[1] == row[16] == pytest.approx(profile.costs.target.ms(16, 64))
    assert replace(profile, pads=False).guide(0.0).target_row(64)[1] == 100.0


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"version": 1}', '{"version": 99}', "not json"],
)
def test_what_is_not_a_profile_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ProfileError) as error:
        storage.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("identity", [None, {}, {"files": None}, {"files": []}])
def test_a_profile_of_no_files_is_refused(identity: object, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_to_json(made()) | {"identity": identity}))
    with pytest.raises(ProfileError, match="not a profile"):
        storage.load(path)


def test_a_broken_profile_is_set_aside_with_a_word() -> None:
    path = storage.save(made())
    path.write_text("{}")
    profile, (line,) = found(IDENTITY)
    assert profile is None
    assert f"kept as {path}.damaged; `specrun tune` makes a new one" in line
    assert storage.saved() == []
    assert found(IDENTITY) == (None, [])


def test_what_has_changed_since_is_named() -> None:
    storage.save(made())
    assert "llama.cpp, RAM changed" in (outdated.why_outdated(IDENTITY | {"llama.cpp": "2", "memory": 8}) or "")
    assert outdated.why_outdated(IDENTITY) is None
    assert outdated.why_outdated({"files": ["t", "other"], "llama.cpp": "1", "memory": 4}) is None


def test_options_that_differ_are_named_with_both_values() -> None:
    settings = LlamaSettings(threads=2, gpu_layers=-1, repack=True)
    before = RunOptions(embedded.TARGET, embedded.DRAFT, (OFF.plan(),), settings=settings)
    storage.save(made(identity=identity_of(before)))

    def changed(**options: object) -> str:
        line = outdated.why_outdated(identity_of(replace(before, **options))) or ""
        return line.removeprefix("this pair was tuned before, but ").partition(" changed since; ")[0]

    others = LlamaSettings(threads=1, repack=False, tensor_split=(3.0, 1.0))
    assert changed(settings=others, exact=True) == (
        "--threads (2, now 1), --repack, --gpu-layers (all, now not given), --exact, "
        "--tensor-split (not given, now 3.0,1.0)"
    )
    assert changed(draft_settings=LlamaSettings(threads=2, type_k="q8_0"), residency="off") == (
        "--residency (not given, now off), --cache-type-k-draft (not given, now q8_0)"
    )
    assert changed(settings=replace(settings, op_offload=False)) == "--no-op-offload"
    unnamed = {"settings": {"of_another_version": False}}
    assert outdated.changed_parts(unnamed, {"settings": {}}) == "options"


def test_another_context_names_the_command_that_measures_it_and_the_size_that_has_a_profile() -> None:
    storage.save(made(identity=IDENTITY | {"context": 4096}))
    assert outdated.why_outdated(IDENTITY | {"context": 8192}) == (
        "this pair was tuned before, but --ctx-size (4096, now 8192) changed since; `specrun tune --ctx-size 8192` "
        "with the same models and options measures again, and --ctx-size 4096 uses that profile"
    )
    both = outdated.why_outdated(IDENTITY | {"context": 8192, "memory": 8}) or ""
    assert "RAM, --ctx-size (4096, now 8192) changed since; `specrun tune --ctx-size 8192` with" in both
    assert "uses that profile" not in both
    assert "`specrun tune` with the same" in (outdated.why_outdated(IDENTITY | {"context": 4096, "memory": 8}) or "")


def test_a_folder_that_cannot_be_written_ends_in_one_line(data_dir: Path) -> None:
    data_dir.write_text("a file")
    with pytest.raises(ProfileError, match="SPECRUN_DATA_DIR"):
        storage.check_folder()
    with pytest.raises(ProfileError, match="cannot be written"):
        storage.save(made())
    with pytest.raises(ProfileError, match="cannot be written"):
        storage.export(made(), data_dir / "x.json")


def test_the_newest_profile_tells_the_threshold_of_offloading(data_dir: Path) -> None:
    options = RunOptions(embedded.TARGET, None, (OFF.plan(),), ctx_size=512)
    identity = identity_of(options)
    assert opening._offload_min_batch(options) is None
    storage.save(made(identity=identity))
    assert opening._offload_min_batch(options) is None
    with_draft = identity | {"files": [identity["files"][0], "a draft"]}
    later = {"settings": LlamaSettings(offload_min_batch=8), "created": "2026-02"}
    storage.save(made(identity=with_draft, **later))
    other = identity | {"files": ["d"]}
    storage.save(made(identity=other, settings=LlamaSettings(offload_min_batch=64), created="2026-03"))
    for i, text in enumerate(("", "[]", '{"settings": 1}', "\xff")):
        (data_dir / "profiles" / f"damaged{i}.json").write_text(text, encoding="latin-1")
    assert opening._offload_min_batch(options) == 8
    storage.save(made(identity=identity, settings=LlamaSettings(offload_min_batch=16), created="2026-04"))
    assert opening._offload_min_batch(options) == 16


def test_it_takes_the_place_of_what_was_learned_but_not_of_an_unfinished_run() -> None:
    learned = storage.save(made(origin="learned"))
    kept_facts.remember(storage.UNFINISHED, IDENTITY, {})
    assert found(IDENTITY) == (None, [])
    storage.save(made())
    assert not learned.exists()
    assert kept_facts.path_of(storage.UNFINISHED, IDENTITY).exists(), "it may be imported, or another draft's may fail"


def test_forgetting_deletes_it() -> None:
    path = storage.save(made())
    assert storage.forget(made()) == path
    assert not path.exists()
    storage.forget(made())


def test_checking_the_folder_leaves_nothing_behind(data_dir: Path) -> None:
    storage.check_folder()
    assert [path for path in data_dir.rglob("*") if path.is_file()] == []

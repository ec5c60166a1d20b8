"""Which settings are tried, and when one of them is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.errors import CrashError, LlamaError
from specrun.llama_settings import LlamaSettings
from specrun.loading.run_options import RunOptions
from specrun.long_run import Run
from specrun.processes import child_process
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY, PassSizes
from specrun.tuning import settings_trials as settings
from specrun.tuning.settings_trials import Tried, measured_apart, variations
from tests.models import wide_target


def names(n_gpus: int = 0, **given: bool) -> list[str]:
    conditions = {"can_repack": True, "is_split": False, "has_tiled": False, "knows_attention": False} | given
    return [name for name, _ in variations(4, 2, n_gpus=n_gpus, **conditions)]


def test_repacked_weights_cannot_stream() -> None:
    assert any("repacked" in name for name in names())
    assert not any("repacked" in name for name in names(can_repack=False))
    assert [name for name in names(can_repack=False, is_split=True) if "repacked" in name] == [
        "weights in RAM repacked"
    ]


def test_how_weights_are_copied_to_a_gpu_is_settled_before_it_is_asked_when() -> None:
    assert ["not mapped" in name for name in names(is_split=True)[:2]] == [True, False]
    assert not any("not mapped" in name for name in names())


def test_tiled_kernels_are_tried_where_they_compute_some_passes() -> None:
    assert [name for name in names(has_tiled=True) if "tiled" in name] == [
        "tiled kernels never",
        "tiled kernels always",
    ]
    assert not any("tiled" in name for name in names())


def test_the_threshold_of_offloading_is_tried_where_it_is_open_and_some_layers_lie_in_ram() -> None:
    conditions = {"can_repack": False, "is_split": True, "has_tiled": False, "knows_attention": False, "n_gpus": 1}
    changes = [change for _, change in variations(4, 2, **conditions, has_threshold=True)]
    assert [change.offload_min_batch for change in changes if change.offload_min_batch] == [8, 16, 64]
    assert all(change.op_offload for change in changes if change.offload_min_batch)
    assert any(change.op_offload is False for change in changes), "never"
    assert not any(change.offload_min_batch for _, change in variations(4, 2, **conditions))
    not_split = conditions | {"is_split": False}
    assert not any(change.offload_min_batch for _, change in variations(4, 2, **not_split, has_threshold=True))


def test_attention_is_tried_where_no_trial_has_told_what_is_fastest() -> None:
    assert {name for name in names() if "f16" in name or "f32" in name} == set(names()) - set(
        names(knows_attention=True)
    )


def test_types_of_the_cache_that_are_the_default_on_a_gpu_or_are_converted_there_are_not_tried() -> None:
    assert [name for name in names(n_gpus=1) if "f16" in name] == ["no flash attention, K and V f16"]
    assert len([name for name in names() if "f16" in name]) == 3


def test_nothing_is_loaded_where_no_candidate_changes_anything() -> None:
    options = RunOptions(Path("missing.gguf"), None, (OFF.plan(),), settings=LlamaSettings(flash_attn="on"), exact=True)
    defaults = LlamaSettings(repack=True)
    open_to_none = [("repacked weights", defaults), ("no flash attention", LlamaSettings(flash_attn="off"))]
    assert settings.choose(options, defaults, open_to_none, "def", Run()) == (defaults, [])


def test_batches_of_several_passes_are_for_several_gpus() -> None:
    assert "2048 tokens of a prompt at a time" in names(n_gpus=2)
    assert "2048 tokens of a prompt at a time" not in names(n_gpus=1)


def test_the_score_is_that_of_the_best_pass_with_a_prompt_read() -> None:
    assert Tried("", LlamaSettings(), {1: 10.0, 8: 80.0}, ANY_SIZE).score() == pytest.approx(0.1)
    assert Tried("", LlamaSettings(), {1: 10.0, 8: 20.0}, ANY_SIZE).score() == pytest.approx((1 + 3 * 0.62) / 20)
    reading = Tried("", LlamaSettings(), {1: 10.0}, ANY_SIZE, prompt_ms=5.12)
    assert reading.score() == pytest.approx(256 / (2560 + 2560)), "500 tokens at 5.12 ms take as long as 256 at 10 ms"


def test_where_prompts_are_read_faster_and_answers_are_written_more_slowly_both_count() -> None:
    # Q4_K_M on 2 Zen 5 cores, not re-ordered and re-ordered.
    plain = Tried("", LlamaSettings(), {1: 23.5}, ANY_SIZE, prompt_ms=1e3 / 280)
    repacked = Tried("", LlamaSettings(repack=True), {1: 18.0}, ANY_SIZE, prompt_ms=1e3 / 190)
    assert repacked.score() > 1.03 * plain.score()
    slower_still = Tried("", LlamaSettings(repack=True), {1: 18.0}, ANY_SIZE, prompt_ms=1e3 / 100)
    assert slower_still.score() < plain.score()


class Clock:
    """A timer of passes that take what a function says."""

    def __init__(self, ms: Callable[[int], float]) -> None:
        self._ms = ms

    def fill(self, ctx: int) -> None:
        pass

    def ms(self, n: int) -> float:
        return self._ms(n)


def test_sizes_that_no_plan_would_use_are_not_timed() -> None:
    in_ram = {1: 22.0, 2: 33.0, 4: 55.0, 8: 92.0, 16: 135.0, 32: 250.0, 64: 500.0}
    assert settings.worth_timing(Clock(in_ram.__getitem__), 64) == ([1, 2, 4, 8, 16, 32], 22.0)
    assert settings.worth_timing(Clock(lambda n: 150.0 + n), 64)[0] == [1, 2, 4, 8, 16, 32, 64]
    assert settings.worth_timing(Clock(lambda n: 150.0 + n), 300)[0] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert settings.worth_timing(Clock(lambda n: 600.0 + n), 300)[0] == [1, 8, 64], "few where passes are slow"
    assert settings.worth_timing(Clock(lambda n: 30.0 * n), 64)[0] == [1, 2, 4, 8]
    assert settings.worth_timing(Clock(lambda n: 150.0 + n), 9)[0] == [1, 2, 4, 8]


def test_padded_passes_are_scored_by_the_sizes_that_they_may_have() -> None:
    ms = {1: 10.0, 4: 30.0, 8: 40.0}
    padded = Tried("", LlamaSettings(), ms, PassSizes(8), prompt_ms=1.0)
    assert padded.score() == pytest.approx(256 / (500 + 2560))
    assert padded.score(exact=True) == pytest.approx(256 / (500 + 256 * 40 / (1 + 3 * 0.62)))
    assert not padded.is_exact, "a plain pass takes four times as long"


def test_padding_is_free_where_a_pass_over_the_least_size_takes_no_longer() -> None:
    in_ram = {1: 25.0, 4: 68.0, 8: 124.0, 64: 500.0}
    assert settings.is_free(PassSizes(8, 4), {1: 100.0, 8: 101.0, 64: 110.0})
    assert not settings.is_free(PassSizes(8, 4), in_ram)
    assert not settings.is_free(PassSizes(1, 1, 7), in_ram), "it would bound the trees"


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was tried; `f16` is 10 % faster than the defaults and exact in large passes, one thread 4 % and in all."""
    asked: list[str] = []
    speed = {
        "defaults": (100.0, ANY_SIZE),
        "f16": (90.0, PassSizes(8)),
        "one thread": (96.0, ANY_SIZE),
        "2 % faster": (98.0, PLAIN_ONLY),
        "4 % faster": (96.0, PLAIN_ONLY),
    }

    def stand_in(name: str, _options: RunOptions, chosen: LlamaSettings, *_: object) -> Tried:
        asked.append(name)
        if name == "refused":
            raise LlamaError("not with this model")
        ms, exact = speed[name]
        return Tried(name, chosen, {1: ms, 8: 8 * ms}, exact)

    monkeypatch.setattr(settings, "measured", stand_in)
    return asked


def chosen(candidates: list[tuple[str, LlamaSettings]], exact: bool, given: LlamaSettings) -> LlamaSettings:
    options = RunOptions(embedded.TARGET, None, (OFF.plan(),), settings=given, exact=exact)
    return settings.choose(options, LlamaSettings(), candidates, "", Run())[0]


F16 = ("f16", LlamaSettings(type_v="f16"))
ONE_THREAD = ("one thread", LlamaSettings(threads=1))
SLIGHTLY = ("2 % faster", LlamaSettings(repack=True))
CLEARLY = ("4 % faster", LlamaSettings(repack=True))


def test_faster_settings_win_and_exact_ones_within_three_percent(timed: list[str]) -> None:
    nothing = LlamaSettings()
    assert chosen([F16], False, nothing) == F16[1]
    assert chosen([F16], True, nothing) == nothing
    assert chosen([SLIGHTLY], False, nothing) == nothing
    assert chosen([CLEARLY], False, nothing) == CLEARLY[1]
    assert chosen([ONE_THREAD, F16], False, nothing) == LlamaSettings(threads=1, type_v="f16")
    assert timed[:2] == ["defaults", "f16"]


def test_settings_that_llama_cpp_refuses_are_left_out(timed: list[str]) -> None:
    refused = ("refused", LlamaSettings(flash_attn="off"))
    assert chosen([refused, F16], False, LlamaSettings()) == F16[1]
    assert "refused" in timed


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize(("crashing", "taken"), [("f16", ONE_THREAD), ("defaults", F16)])
def test_settings_that_crash_llama_cpp_are_named_and_left_out(
    crashing: str, taken: tuple[str, LlamaSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = settings.measured

    def apart(name: str, *arguments: object) -> Tried:
        if name == crashing:
            raise CrashError("a trial of settings ended by signal 11")
        return here(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(settings, "measured_apart", apart)
    notes: list[str] = []
    options = RunOptions(embedded.TARGET, None, (OFF.plan(),))
    candidates = [("refused", LlamaSettings(flash_attn="off")), F16, ONE_THREAD]
    best, tried = settings.choose(options, LlamaSettings(), candidates, "", Run(note=notes.append), may_crash=True)
    assert best == taken[1]
    assert crashing not in [one.name for one in tried]
    assert notes == [
        f"llama.cpp crashed with some settings, which are left out: {crashing} (a trial of settings ended by signal 11)"
    ]


def test_where_all_settings_crash_tune_ends_with_the_first_crash(
    timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(name: str, *_: object) -> Tried:
        raise CrashError(name)

    monkeypatch.setattr(settings, "measured_apart", apart)
    options = RunOptions(embedded.TARGET, None, (OFF.plan(),))
    with pytest.raises(CrashError, match="defaults"):
        settings.choose(options, LlamaSettings(), [F16], "", Run(), may_crash=True)
    assert timed == []


def test_what_the_user_decided_is_not_tried(timed: list[str]) -> None:
    assert chosen([F16, ONE_THREAD], False, LlamaSettings(type_v="bf16")) == LlamaSettings(threads=1)
    assert "f16" not in timed


def test_exact_settings_take_the_place_of_inexact_ones_that_are_hardly_faster(timed: list[str]) -> None:
    # One thread is exact, and as fast as what is 4 % faster than the defaults and not exact.
    assert chosen([CLEARLY, ONE_THREAD], False, LlamaSettings()) == LlamaSettings(threads=1, repack=True)
    assert chosen([F16, ONE_THREAD], False, LlamaSettings()) == F16[1], "90 ms against 96 ms"
    assert "one thread" in timed


def test_when_the_time_is_over_no_further_settings_are_tried(timed: list[str]) -> None:
    options = RunOptions(embedded.TARGET, None, (OFF.plan(),))
    notes: list[str] = []
    run = Run(note=notes.append).stage(-1)
    assert settings.choose(options, LlamaSettings(), [F16], "", run)[0] == LlamaSettings()
    assert timed == ["defaults"]
    assert notes[0].startswith("time for 0 of 1 settings besides the defaults")


def test_after_ctrl_c_nothing_is_said_about_the_time(timed: list[str]) -> None:
    notes: list[str] = []
    run = Run(note=notes.append, interrupted=lambda: bool(timed)).stage(-1)
    with pytest.raises(KeyboardInterrupt):
        settings.choose(RunOptions(embedded.TARGET, None, (OFF.plan(),)), LlamaSettings(), [F16], "", run)
    assert (timed, notes) == (["defaults"], [])


def test_where_two_trials_would_take_too_long_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, notes = list[str](), list[str]()
    monkeypatch.setattr(settings, "measured", lambda name, *_: asked.append(name))
    run = Run(note=notes.append)
    options = RunOptions(embedded.TARGET, None, (OFF.plan(),))
    assert settings.choose(options, LlamaSettings(), [F16, ONE_THREAD], "", run) == (LlamaSettings(), [])
    assert (asked, notes) == (["defaults"], [settings.NOT_TRIED])


@pytest.mark.slow
def test_a_slow_target_is_not_timed_where_there_is_no_time_for_a_second_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_VERY_SLOW_MS", 0.0)
    options = RunOptions(embedded.TARGET, None, (OFF.plan(),), settings=LlamaSettings(threads=1))
    text = "def read(path):\n    return open(path).read()\n"
    assert settings.measured("defaults", options, LlamaSettings(), False, text, Run().stage(0)) is None
    assert settings.measured("defaults", options, LlamaSettings(), False, text, Run().stage(3600))
    monkeypatch.setattr(child_process, "answer", lambda *_: {})
    assert settings.measured_apart("defaults", options, LlamaSettings(), False, text, Run().stage(0)) is None


def test_settings_whose_bits_were_not_compared_are_not_exact() -> None:
    tried = Tried("", LlamaSettings(), {1: 10.0, 8: 10.1}, None)
    assert not tried.is_exact


@pytest.mark.slow
def test_a_real_model_is_timed_and_compared() -> None:
    options = RunOptions(embedded.TARGET, None, (OFF.plan(),), settings=LlamaSettings(threads=1), exact=True)
    text = "def read(path):\n    return open(path).read()\n"
    best, (defaults, f16) = settings.choose(options, LlamaSettings(), [F16], text, Run())
    assert (defaults.name, f16.name) == ("defaults", "f16")
    assert (defaults.settings, f16.settings) == (LlamaSettings(), LlamaSettings(type_v="f16"))
    assert defaults.exact_sizes == ANY_SIZE
    assert all(ms > 0 for tried in (defaults, f16) for ms in tried.ms.values())
    assert defaults.ms[4] > defaults.ms[1]
    if f16.score(exact=True) < 1.02 * defaults.score():
        assert best == LlamaSettings()
    elif f16.score(exact=True) > 1.04 * defaults.score():
        assert best == f16.settings


def test_settings_that_change_a_process_are_tried_in_others(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "measured_apart", settings.measured)
    monkeypatch.setattr(settings, "measured", lambda *_: pytest.fail("in this process"))
    for once in (LlamaSettings(tiled="never"), LlamaSettings(offload_min_batch=8)):
        timed.clear()
        candidates = [("f16", LlamaSettings(type_v="f16")), ("4 % faster", once)]
        settings.choose(RunOptions(embedded.TARGET, None, (OFF.plan(),)), LlamaSettings(), candidates, "", Run())
        assert timed == ["defaults", "f16", "4 % faster"]


@pytest.mark.slow
def test_a_trial_in_another_process_is_a_trial(tmp_path: Path) -> None:
    decided = LlamaSettings(threads=1, tensor_split=(1.0, 2.0))
    options = RunOptions(embedded.TARGET, None, (OFF.plan(),), ctx_size=200, settings=decided)
    changed = LlamaSettings(type_v="f16", offload_min_batch=8)  # which this process could not change any more
    tried = measured_apart("f16", options, changed, False, "def read(path):\n", Run())
    assert (tried.name, tried.settings, tried.exact_sizes) == ("f16", changed, None)
    assert tried.prompt_ms > 0
    assert all(ms > 0 for ms in tried.ms.values())
    with pytest.raises(LlamaError, match="nothing"):
        measured_apart("f16", replace(options, target=tmp_path / "nothing.gguf"), LlamaSettings(), False, "x", Run())


def test_ctrl_c_ends_a_trial_in_another_process() -> None:
    options = RunOptions(embedded.TARGET, None, (OFF.plan(),))
    with pytest.raises(KeyboardInterrupt):
        measured_apart("f16", options, LlamaSettings(), True, "def", Run(interrupted=lambda: True))


@pytest.mark.slow
def test_with_exactness_tiled_kernels_in_no_pass_or_in_all_are_compared_with_padding(made: Path) -> None:
    target = wide_target(made, "q4_k_m")
    decided = LlamaSettings(threads=1, repack=False)
    options = RunOptions(target, None, (OFF.plan(),), settings=decided, exact=True)
    candidates = [(name, change) for name, change in variations(1, 1, False, False, 0, True, False) if change.tiled]
    candidates = [(name, replace(change, repack=None)) for name, change in candidates]
    text = "def read(path):\n    return open(path).read()\n"
    best, (padded, never, always) = settings.choose(options, LlamaSettings(), candidates, text, Run())
    if padded.exact_sizes == ANY_SIZE:
        pytest.skip("this CPU has no tiled kernels")
    assert never.exact_sizes == always.exact_sizes == ANY_SIZE
    assert (never.settings.tiled, always.settings.tiled) == ("never", "always")
    scores = {trial.settings.tiled: trial.score(exact=True) for trial in (padded, never, always)}
    assert scores[best.tiled] > 0.9 * max(scores.values())

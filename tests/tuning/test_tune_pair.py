"""What `tune` does when the fastest settings need another process."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specrun.cli import main
from specrun.hardware.cpu import LoadWatch
from specrun.llama_settings import LlamaSettings
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions, identity_of
from specrun.long_run import Run
from specrun.speculation.method import OFF
from specrun.tuning import tune_pair
from specrun.tuning.tune_pair import OtherProcessNeededError
from specrun.tuning.unfinished import UnfinishedRun


@pytest.fixture(autouse=True)
def fastest_with_8(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if copying weights to a GPU in passes of 8 tokens had been the fastest."""
    chosen = LlamaSettings(op_offload=True, offload_min_batch=8)
    monkeypatch.setattr(tune_pair, "_try_settings", lambda *_: (chosen, []))
    monkeypatch.setattr(LoadWatch, "seconds", 1.0)  # so that nothing waits for it


def test_what_was_measured_is_kept_for_the_process_that_goes_on(random_model: Path) -> None:
    options = RunOptions(random_model, None, (OFF.plan(),), settings=LlamaSettings(threads=1, ubatch_size=64))
    identity = identity_of(options)
    with pytest.raises(OtherProcessNeededError) as needed:
        tune_pair.tune_pair(options, "quick", [0.0], None, False, Run())
    assert needed.value.variables == {"GGML_OP_OFFLOAD_MIN_BATCH": "8"}
    unfinished = UnfinishedRun(identity, "quick [0.0]  False")
    assert unfinished.is_resumed
    assert unfinished.stages.settings == LlamaSettings(op_offload=True, offload_min_batch=8)


def test_the_same_command_is_started_in_such_a_process(random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class Started(BaseException):
        """Stands for the other process."""

    def execve(*arguments: Any) -> None:
        started.extend(arguments)
        raise Started

    monkeypatch.setattr(os, "execve", execve)
    command = ["specrun", "tune", "-m", str(random_model), "--draft", "none", "-t", "1", "-ub", "64", "--quick"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", *command])
    with pytest.raises(Started):
        main()
    program, arguments, environment = started
    assert (program, arguments) == (sys.executable, [sys.executable, "-m", *command])
    assert environment["GGML_OP_OFFLOAD_MIN_BATCH"] == "8"
    assert environment["SPECRUN_DATA_DIR"] == os.environ["SPECRUN_DATA_DIR"]


def test_a_target_whose_settings_are_not_tried_keeps_what_the_trial_of_tiled_kernels_chose(
    random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = RunOptions(random_model, None, (OFF.plan(),), ctx_size=256)
    plan = plan_load(options)
    chosen = replace(options, settings=LlamaSettings(tiled_from=11, type_v="f16"))
    monkeypatch.setattr(tune_pair, "with_defaults", lambda plan: replace(plan, options=chosen))
    monkeypatch.setattr(tune_pair, "_choose_prompt_pass", lambda _options, _plan, settings, *_: (settings, {}))
    settings, tried, _ = tune_pair._choose_settings(options, plan, 20.0, False, True, Run())
    assert (settings.tiled_from, settings.type_v, tried) == (11, None, []), "V is cached as with any profile"

"""From how many tokens on passes copy weights to the GPU is settled before llama.cpp's backends start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specrun.errors import UsageError
from specrun.llama import offload_threshold
from specrun.llama_settings import LlamaSettings
from specrun.loading.run_options import RunOptions, identity_of
from specrun.profiles import profile_files
from specrun.profiles.codec import profile_from_json
from specrun.speculation.method import OFF

ROOT = Path(__file__).parents[2]
SAVED = ROOT / "tests" / "profiles" / "profile-version-4.json"

# Opens a model as every command does, and prints what llama.cpp's backends read when they started.
_OPEN = """
import json, os, sys
from specrun.catalog.resolve import Fetcher
from specrun.loading.opening import open_model
from specrun.llama import library, offload_threshold
from specrun.options.machine_options import MachineOptions
from specrun.options.speculation_options import ModelOptions
from specrun.options.speculation_options import SpeculationOptions

started = []
init = library.llama_cpp.llama_backend_init
def starting():
    started.append(os.environ.get("GGML_OP_OFFLOAD_MIN_BATCH"))
    init()
library.llama_cpp.llama_backend_init = starting
models = ModelOptions(sys.argv[1], "none")
with open_model(models, SpeculationOptions(), MachineOptions(threads=1), 0.0, Fetcher(False), print) as model:
    tokens = model.generate("def", max_tokens=4).token_ids
print(json.dumps({"started": started, "in_use": offload_threshold.in_use(), "tokens": tokens}))
"""


def opened(target: Path, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-c", _OPEN, str(target)]
    run = subprocess.run(command, env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout.splitlines()[-1]))


def save(target: Path, threshold: int | None) -> None:
    """A profile of the target with a draft, as `specrun tune` on this machine would save it."""
    one_thread = LlamaSettings(threads=1)
    identity = identity_of(RunOptions(target, None, (OFF.plan(),), settings=one_thread, draft_settings=one_thread))
    identity["files"][1] = "some draft"
    profile = profile_from_json(json.loads(SAVED.read_text()))
    settings = LlamaSettings(offload_min_batch=threshold)
    profile_files.save(replace(profile, identity=identity, settings=settings))


@pytest.mark.slow
def test_a_profile_settles_it_before_the_backends_start(random_model: Path) -> None:
    without = opened(random_model)
    assert (without["started"], without["in_use"]) == ([None], 32)
    save(random_model, None)
    assert opened(random_model)["started"] == [None]
    save(random_model, 8)
    followed = opened(random_model)
    assert (followed["started"], followed["in_use"]) == (["8"], 8)
    assert followed["tokens"] == without["tokens"]


@pytest.mark.slow
def test_a_profile_that_does_not_fit_settles_nothing(random_model: Path, demo_target: Path) -> None:
    save(demo_target, 8)
    assert opened(random_model)["started"] == [None]


@pytest.mark.slow
def test_what_the_environment_says_and_the_profile_does_not_is_one_line(random_model: Path) -> None:
    save(random_model, 8)
    command = [sys.executable, "-m", "specrun", "generate", "-m", str(random_model), "--draft", "none", "-t", "1", "x"]
    environment = os.environ | {"GGML_OP_OFFLOAD_MIN_BATCH": "64"}
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == UsageError.exit_code
    assert "in passes of 64 tokens and more" in run.stderr
    assert "set GGML_OP_OFFLOAD_MIN_BATCH=8" in run.stderr


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had started yet."""
    monkeypatch.setattr(offload_threshold, "_started_with", None)
    monkeypatch.setenv("GGML_OP_OFFLOAD_MIN_BATCH", "1")  # so that it is restored
    monkeypatch.delenv("GGML_OP_OFFLOAD_MIN_BATCH")


@pytest.mark.usefixtures("process")
def test_it_is_settled_once() -> None:
    assert (offload_threshold.in_use(), offload_threshold.is_open()) == (32, True)
    offload_threshold.settle(None)
    offload_threshold.settle(32)
    assert offload_threshold.is_open()
    offload_threshold.settle(8)
    assert (offload_threshold.in_use(), offload_threshold.is_open()) == (8, False)
    offload_threshold.settle(16)
    offload_threshold.start()
    offload_threshold.start()
    offload_threshold.settle(None)
    offload_threshold.settle(16)
    with pytest.raises(UsageError, match="16 tokens and more in this process, and the model's profile needs 8"):
        offload_threshold.settle(8)


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(("text", "expected"), [("64", 64), ("never", 0), ("", 0)])
def test_the_variable_is_read_as_llama_cpp_reads_it(text: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_OP_OFFLOAD_MIN_BATCH", text)
    assert offload_threshold.in_use() == expected

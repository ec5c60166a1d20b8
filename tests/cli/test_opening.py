"""A GPU that cannot be used is named once, with what mends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.cli import opening
from specrun.options.speculation_options import ModelOptions
from tests.conftest import SCRIPT_TEXT, SpecrunHere
from tests.hardware.test_machine import GPU


def test_it_is_said_in_the_first_run_and_again_when_it_changed(
    here: SpecrunHere, script: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("generate", "-m", str(script), "--draft", "none", "--speculate", "off", "--raw", "x")
    monkeypatch.setattr(opening, "offload_devices", lambda _: ())
    monkeypatch.setattr(opening, "gpu_driver", lambda: "nvidia 550.54.14")
    first, second = here(*command), here(*command)
    assert first.stderr.count("CMAKE_ARGS=-DGGML_CUDA=on pip") == 1
    assert second.stderr == ""
    assert first.stdout == second.stdout == SCRIPT_TEXT + "\n"
    monkeypatch.setattr(opening, "gpu_driver", lambda: None)
    monkeypatch.setattr(opening, "nvidia_card", lambda: True)
    assert "whose driver is not loaded" in here(*command).stderr
    assert "whose driver is not loaded" in here("--version").stderr


def test_one_file_for_both_models_is_seen_by_whatever_name(script: Path, tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(script)
    assert opening._is_own_draft(ModelOptions(str(script), str(tmp_path / "link.gguf")))
    assert opening._is_own_draft(ModelOptions("qwen-14b", "qwen-14b"))
    for draft in ("qwen-0.5b", "none", str(tmp_path / "none.gguf"), None):
        assert not opening._is_own_draft(ModelOptions(str(script), draft))


def test_nothing_is_said_where_no_gpu_is_known_or_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "nvidia_card", lambda: False)
    for n_gpus, driver in ((0, None), (1, "nvidia 550.54.14")):
        monkeypatch.setattr(opening, "offload_devices", lambda _, n=n_gpus: (GPU,) * n)
        monkeypatch.setattr(opening, "gpu_driver", lambda driver=driver: driver)
        assert opening.unusable_gpu() is None

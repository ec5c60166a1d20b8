"""`specrun doctor`: its lines, its JSON and its exit code; and that a GPU that cannot be used is named once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from specrun.cli import doctor
from specrun.doctor import Finding, examine
from specrun.loading.run_options import RunOptions, identity_of
from specrun.profiles import profile_files
from specrun.speculation.method import OFF
from tests.conftest import SCRIPT_TEXT, SpecrunHere
from tests.hardware.test_machine import GPU
from tests.profiles.test_profile import made

CHECKS = {
    "versions",
    "backends",
    "instructions",
    "profiles",
    "kept facts",
    "memory",
    "lockable memory",
    "other load",
    "disk rate",
    "cpu quota",
    "prompts",
}
CHECKS |= {"models folder", "cache folder", "data folder", "configuration folder", "hub", "cpu quota"}

FINDINGS = [
    Finding("memory", "ok", "20.00 GB of 32.00 GB free"),
    Finding("hub", "warn", "no connection to http://127.0.0.1:9 (refused); only models that are here", "curl -I [x]"),
]


@pytest.mark.slow
def test_json_has_what_others_rely_on_and_nothing_is_left_behind(here: SpecrunHere, tmp_path: Path) -> None:
    result = here("doctor", "--json")
    findings = json.loads(result.stdout)
    assert all(list(finding) == ["check", "status", "detail", "fix"] for finding in findings)
    found = {finding["check"]: finding for finding in findings}
    assert found.keys() >= CHECKS
    assert any(check.startswith("device ") for check in found)
    assert {finding["status"] for finding in findings} <= {"ok", "warn", "fail"}
    assert all(bool(finding["fix"]) == (finding["status"] != "ok") for finding in findings)
    assert found["hub"]["status"] == "warn"
    assert (result.code, result.stderr) == (int(any(f["status"] == "fail" for f in findings)), "")
    left = {path.parent for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {tmp_path / "data" / "facts"}, "only what llama.cpp was checked for is kept"


@pytest.mark.slow
def test_a_failure_is_a_line_with_what_mends_it_and_exit_code_1(here: SpecrunHere) -> None:
    result = here("doctor", SPECRUN_DATA_DIR="/proc/specrun", HF_HUB_OFFLINE="1")
    assert (result.code, result.stderr) == (1, "")
    lines = result.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if "data folder" in line)
    assert lines[at].startswith("fail  data folder: /proc/specrun cannot be written")
    assert lines[at + 1] == "      -> SPECRUN_DATA_DIR=/another/folder in the environment"
    assert lines[0].startswith("ok    versions: specrun ")


@pytest.mark.slow
@pytest.mark.usefixtures("known_facts")
def test_a_profile_of_this_machine_fits_and_one_of_another_build_is_named(here: SpecrunHere, demo_target: Path) -> None:
    identity = identity_of(RunOptions(demo_target, None, (OFF.plan(),), ctx_size=512))
    profile_files.save(made(identity=identity))
    profile_files.save(made(identity=identity | {"llama.cpp": "older"}))
    found = {finding["check"]: finding for finding in json.loads(here("doctor", "--json").stdout)}
    assert found["profiles"]["status"] == "warn"
    assert found["profiles"]["detail"].startswith("1 of 2 fit")
    assert "(llama.cpp changed since)" in found["profiles"]["detail"]


@pytest.mark.slow
def test_it_does_not_import_llama_cpp_which_may_end_the_process() -> None:
    program = """
import sys
from specrun.doctor.examine import examine
findings = list(examine(lambda text: None))
print(len(findings), "llama_cpp" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    n_findings, imported = run.stdout.split()
    assert int(n_findings) > len(CHECKS)
    assert imported == "False"


def test_a_narrow_terminal_loses_nothing() -> None:
    console = Console(width=40, color_system=None)
    with console.capture() as captured:
        console.print(doctor.as_table(FINDINGS))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0].split() == ["ok", "memory", "20.00", "GB", "of", "32.00", "GB", "free"]
    assert "-> curl -I [x]" in captured.get(), "brackets are no markup"


def test_in_a_pipe_a_finding_is_a_line() -> None:
    first, second, fix = doctor.lines(FINDINGS).splitlines()
    assert first == "ok    memory: 20.00 GB of 32.00 GB free"
    assert second.startswith("warn  hub: no connection")
    assert fix == "      -> curl -I [x]"


def test_prompts_that_are_kept_are_listed_and_deleted(here: SpecrunHere, tmp_path: Path) -> None:
    assert examine.kept_prompts().detail == "none is kept"
    path = tmp_path / "cache" / "prompts" / "subject" / "one.state"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(3_000_000))
    assert "1 kept" in examine.kept_prompts().detail
    assert "3 MB" in here("doctor", "--forget-prompts").stderr
    assert not path.exists()
    assert here("doctor", "--forget-prompts").code == 0


def test_it_is_said_in_the_first_run_and_again_when_it_changed(
    here: SpecrunHere, script: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("generate", "-m", str(script), "--draft", "none", "--speculate", "off", "--raw", "x")
    monkeypatch.setattr(doctor, "offload_devices", lambda _: ())
    monkeypatch.setattr(doctor, "gpu_driver", lambda: "nvidia 550.54.14")
    first, second = here(*command), here(*command)
    assert first.stderr.count("CMAKE_ARGS=-DGGML_CUDA=on pip") == 1
    assert second.stderr == ""
    assert first.stdout == second.stdout == SCRIPT_TEXT + "\n"
    monkeypatch.setattr(doctor, "gpu_driver", lambda: None)
    monkeypatch.setattr(doctor, "nvidia_card", lambda: True)
    assert "whose driver is not loaded" in here(*command).stderr
    assert "whose driver is not loaded" in here("--version").stderr


def test_nothing_is_said_where_no_gpu_is_known_or_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "nvidia_card", lambda: False)
    for n_gpus, driver in ((0, None), (1, "nvidia 550.54.14")):
        monkeypatch.setattr(doctor, "offload_devices", lambda _, n=n_gpus: (GPU,) * n)
        monkeypatch.setattr(doctor, "gpu_driver", lambda driver=driver: driver)
        assert doctor.unusable_gpu() is None

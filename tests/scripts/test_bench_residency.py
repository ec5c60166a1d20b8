"""What scripts/bench_residency.py makes of what its runs print."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module."""
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("bench_residency")
    sys.path.remove(str(SCRIPTS))


def test_the_bytes_are_those_that_the_cap_reports(script: ModuleType) -> None:
    output = "some text\ncapped.py: read 9534000000 bytes (9,092.3 MiB) from storage, 20 major page faults\n"
    assert script.bytes_read(output) == 9534000000
    assert script.bytes_read("capped.py: bytes read from storage unknown, 3 major page faults") == 0


def test_a_row_is_the_median_of_its_runs(script: ModuleType) -> None:
    plain = [script.Run(rate, 1e3 / rate, 1.0, 8_000_000) for rate in (1.0, 2.0, 9.0)]
    streamed = [script.Run(5.0, 200.0, 1.0, 3_000_000, n, 20.0) for n in (400_000_000, 420_000_000, 440_000_000)]
    lines = script.as_table({"plain": plain, "streamed": streamed}).splitlines()
    assert lines[2] == "| plain | 2.00 | 1.00 | 1.00 | 500 | 8 |  |  |"
    assert lines[3] == "| streamed | 5.00 | 2.50 | 1.00 | 200 | 3 | 420 | 20 |"


def test_passes_stand_beside_what_they_would_cost_at_best(script: ModuleType) -> None:
    def row(ms: float, n_bytes: float) -> dict[str, Any]:
        sizes = {
            "mode": "ring",
            "disk_bytes_per_second": 1e9,
            "weight_bytes": 1e9,
            "resident_bytes": 4e8,
            "streamed_bytes": 6e8,
        }
        return {**sizes, "ms": {"1": ms, "64": 10 * ms}, "bytes": {"1": n_bytes, "64": n_bytes}}

    runs = [row(ms, 6e8) for ms in (100, 660, 800)]
    rows = {"in RAM": row(90, 0), "page cache": row(1200, 1e9), "streamed": script._medians(runs)}
    lines = script.as_pass_table(rows).splitlines()
    assert lines[0] == "| weights | ms of 1 token | MB read | ms of 64 tokens | MB read |"
    assert lines[4] == "| streamed | 660 | 600 | 6600 | 600 |"
    assert "reading takes 600 ms" in lines[6]
    assert lines[7:] == [
        "1: max(read, compute) is 600 ms, of which 1.10 is taken.",
        "64: max(read, compute) is 900 ms, of which 7.33 is taken.",
    ]


@pytest.fixture
def disk(tmp_path: Path) -> tuple[Path, Path]:
    """A folder like /sys, and the setting in it for the disk of the temporary folder."""
    device = tmp_path.stat().st_dev
    folder = tmp_path / "class" / "bdi" / f"{os.major(device)}:{os.minor(device)}"
    folder.mkdir(parents=True)
    (folder / "read_ahead_kb").write_text("512\n")
    return tmp_path, folder / "read_ahead_kb"


def test_the_read_ahead_is_restored_whatever_happens(script: ModuleType, disk: tuple[Path, Path]) -> None:
    sys_folder, setting = disk
    seen = []

    def ended(error: type[BaseException]) -> None:
        with script.read_ahead(setting, 128, sys_folder):
            seen.append(setting.read_text())
            raise error

    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            ended(error)
        assert seen.pop() == "128"
        assert setting.read_text() == "512\n"


def test_the_setting_of_a_partition_is_that_of_its_disk(script: ModuleType, tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    disk = tmp_path / "devices" / "disk"
    (disk / "queue").mkdir(parents=True)
    (disk / "queue" / "read_ahead_kb").write_text("64")
    (disk / "part").mkdir()
    (tmp_path / "dev" / "block").mkdir(parents=True)
    (tmp_path / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}").symlink_to(disk / "part")
    with script.read_ahead(tmp_path, 32, tmp_path):
        assert (disk / "queue" / "read_ahead_kb").read_text() == "32"
    assert (disk / "queue" / "read_ahead_kb").read_text() == "64"


def test_a_disk_without_the_setting_is_one_line(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(script.ReadAheadError, match="does not say"), script.read_ahead(tmp_path, 32, tmp_path):
        pass


@pytest.mark.long
def test_passes_of_a_real_model_are_timed(demo_target: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "time_passes.py"), str(demo_target), "--sizes", "1,3", "--repeat", "1"]
    run = subprocess.run([*command, "-t", "1"], capture_output=True, text=True, timeout=120)
    timed = json.loads(run.stdout)
    assert set(timed["ms"]) == set(timed["bytes"]) == {"1", "3"}
    assert all(ms > 0 for ms in timed["ms"].values())
    assert timed["weight_bytes"] > 10**6
    assert timed["streamed_bytes"] == 0

"""The processor, from the texts that describe it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specrun.hardware import cpu
from specrun.hardware.cpu import Cpu, allowed_cores, cpu_features, cpuinfo_name, read_quota, usable_cores
from specrun.llama.devices import system_info
from tests.quotas import cpu_quota


def group(mount: Path, version: int, path: str, quota: str, period: str = "100000") -> None:
    """A cgroup as Linux shows it. quota: microseconds of a period, or `max`."""
    folder = mount / path
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        (folder / "cpu.max").write_text(f"{quota} {period}\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text(f"{'-1' if quota == 'max' else quota}\n")
        (folder / "cpu.cfs_period_us").write_text(f"{period}\n")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("of_groups", "expected"),
    [
        ({}, None),
        ({"job": "max", "job/step": "max"}, None),
        ({"job/step": "50000"}, 0.5),
        ({"job": "150000", "job/step": "max"}, 1.5),
        ({"job": "150000", "job/step": "400000"}, 1.5),
        ({"job": "400000", "job/step": "150000"}, 1.5),
        ({"": "250000", "job": "max", "job/step": "max"}, 2.5),
    ],
)
def test_the_least_quota_of_all_groups_counts(
    tmp_path: Path, version: int, of_groups: dict[str, str], expected: float | None
) -> None:
    mount = tmp_path if version == 2 else tmp_path / "cpu"
    (tmp_path / "cgroup").write_text(
        "0::/job/step\n" if version == 2 else "3:memory:/x\n2:cpu,cpuacct:/job/step\n0::/\n"
    )
    for path, quota in of_groups.items():
        group(mount, version, path, quota)
    assert read_quota(tmp_path, tmp_path) == expected


@pytest.mark.parametrize("own", ["/docker/abc", "/../other", "/"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_container_sees_its_own_group_only(tmp_path: Path, version: int, own: str) -> None:
    (tmp_path / "cgroup").write_text(f"0::{own}\n" if version == 2 else f"1:cpuacct,cpu:{own}\n")
    group(tmp_path if version == 2 else tmp_path / "cpu", version, "", "20000", "50000")
    assert read_quota(tmp_path, tmp_path) == 0.4


@pytest.mark.parametrize("content", ["", "max", "100000", "1 0", "x y", "100000 100000 1"])
def test_what_is_no_quota_limits_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text(content)
    assert read_quota(tmp_path, tmp_path) is None
    assert read_quota(tmp_path / "nowhere", tmp_path) is None


@pytest.mark.parametrize(
    ("quota", "cores", "threads"), [(0.5, 1, 1), (1.5, 1, 1), (2.9, 2, 2), (5.0, 4, 5), (None, 4, 8)]
)
def test_threads_stay_within_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int, threads: int
) -> None:
    monkeypatch.setattr(cpu, "read_quota", lambda: quota)
    monkeypatch.setattr(cpu, "allowed_cores", lambda: list(range(8)))
    monkeypatch.setattr(cpu.psutil, "cpu_count", lambda logical=True: 8 if logical else 4)
    assert (cpu.usable_cores(), cpu.usable_threads()) == (cores, threads)


@pytest.mark.slow
@pytest.mark.skipif(len(allowed_cores()) < 2, reason="one core")
@pytest.mark.parametrize("n_below", [0, 2])
def test_a_quota_of_the_kernel(n_below: int) -> None:
    program = "from specrun.hardware import cpu; print(cpu.read_quota(), cpu.usable_cores())"
    try:
        with cpu_quota(1.5, n_below) as enter:
            said = subprocess.run([sys.executable, "-c", program], preexec_fn=enter, capture_output=True, check=True)
    except OSError as error:
        pytest.skip(f"{error}")
    assert said.stdout == b"1.5 1\n"
    assert usable_cores() >= 1


def test_features_are_those_of_the_cpu_backend() -> None:
    text = "CUDA : ARCHS = 890 | USE_GRAPHS = 1 | CPU : SSE3 = 1 | AVX512 = 0 | SVE_CNT = 16 | REPACK = 1 | "
    assert cpu_features(text) == ("SSE3", "SVE_CNT=16", "REPACK")
    assert cpu_features("") == ()


def test_names() -> None:
    assert cpuinfo_name("processor\t: 0\nmodel name\t: AMD  EPYC 9B45\n\nmodel name: other\n") == "AMD EPYC 9B45"
    assert cpuinfo_name("processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Raspberry Pi 5\n") == "Raspberry Pi 5"
    assert cpuinfo_name("processor : 0\n") == ""


def test_this_machine() -> None:
    cpu = Cpu.read(system_info())
    assert cpu.name
    assert 1 <= cpu.n_usable <= cpu.n_physical <= cpu.n_logical
    assert cpu.features


@pytest.mark.slow
def test_a_child_that_has_ended_is_none_of_the_other_programs() -> None:
    before = cpu._own_seconds()
    subprocess.run([sys.executable, "-c", "for _ in range(30): sum(range(1_000_000))"], check=True)
    assert cpu._own_seconds() - before > 0.2

"""scripts/slow_disk.py, where this machine lets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "slow_disk.py"
CGROUPS = Path("/sys/fs/cgroup")


def slow_disk(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True)


def test_the_command_runs_within_a_limit_and_its_code_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 4096)
    result = slow_disk("400M", file, "--", "sh", "-c", "cat /proc/self/cgroup; exit 3")
    if result.returncode == 2:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 3
    assert "specrun-slow-disk-" in result.stdout
    assert not list(CGROUPS.glob("**/specrun-slow-disk-*"))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fast", SCRIPT, "--", "true"], 2, "not a size"),
        (["1M", "nothing", "--", "true"], 2, "cannot be read"),
        (["1M", SCRIPT], 2, "give a command"),
    ],
)
def test_what_cannot_be_is_said(arguments: list[object], code: int, message: str) -> None:
    result = slow_disk(*arguments)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr

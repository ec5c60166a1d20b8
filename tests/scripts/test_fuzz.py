"""The short form of `python scripts/fuzz.py`: broken model files, each loaded in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import TIMEOUT_S

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz.py"


@pytest.mark.slow
def test_broken_files_are_written_from_or_refused(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--cases", "120", "--jobs", "1", "--json", tmp_path / "cases.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "120 cases" in done.stdout
    assert " refused" in done.stdout
    assert " written" in done.stdout
    assert (tmp_path / "cases.jsonl").read_text().count("\n") == 120

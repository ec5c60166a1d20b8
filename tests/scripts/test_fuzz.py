"""The short forms of `scripts/fuzz.py`, broken model files, and of `scripts/fuzz_texts.py`, texts of any characters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.templates import GEMMA2
from tests.waiting import TIMEOUT_S

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.slow
def test_broken_files_are_written_from_or_refused(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPTS / "fuzz.py", "--cases", "120", "--jobs", "1", "--json", tmp_path / "cases.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "120 cases" in done.stdout
    assert " refused" in done.stdout
    assert " written" in done.stdout
    assert (tmp_path / "cases.jsonl").read_text().count("\n") == 120


@pytest.mark.slow
def test_texts_of_any_characters_are_answered_or_refused(tmp_path: Path) -> None:
    (tmp_path / "no-system.jinja").write_text(GEMMA2)
    command = [sys.executable, SCRIPTS / "fuzz_texts.py", "--texts", "16", "--templates", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("16 texts with ")
    for way in ("prompt", "line", "message", "request"):
        assert f"{way}: answered" in done.stdout

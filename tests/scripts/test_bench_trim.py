"""The table of trimmed drafts, of the embedded pair."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specrun.catalog import embedded

ROOT = Path(__file__).parents[2]
FEW = ("--vocabs", "2048,2304", "--kept", "1024,2240", "--tokens", "8", "--texts", "1", "--rounds", "1", "-t", "1")


@pytest.mark.long
def test_each_vocabulary_is_measured_whole_and_trimmed() -> None:
    command = [sys.executable, str(ROOT / "scripts/bench_trim.py"), str(embedded.TARGET), str(embedded.DRAFT), *FEW]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert [row[:2] for row in rows] == [
        ["2,048", "2,048"],
        ["2,048", "1,024"],
        ["2,304", "2,304"],
        ["2,304", "1,024"],
        ["2,304", "2,240"],
    ]
    for row in rows:
        assert len(row) == 7
        assert all(float(cell) > 0 for cell in row[2:])
    whole, other = rows[0][5:], rows[2][5:]
    assert whole == other, "tokens that are never written change nothing"

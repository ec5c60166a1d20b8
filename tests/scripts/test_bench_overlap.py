"""The table of drafts with other tokenizers, of the embedded pair."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specrun.catalog import embedded

ROOT = Path(__file__).parents[2]
FEW = ("--shares", "80", "--tokens", "8", "--texts", "1", "-t", "1")


@pytest.mark.long
def test_each_draft_has_a_row(tmp_path: Path) -> None:
    script = str(ROOT / "scripts/bench_overlap.py")
    kept = tmp_path / "kept"
    command = [sys.executable, script, str(embedded.TARGET), str(embedded.DRAFT), *FEW, "--keep", str(kept)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert rows[0][2:] == rows[1][2:]
    assert [row[1] for row in rows[:2]] == ["", "100%"]
    assert rows[2][1] in {f"{n}%" for n in range(50, 95)}
    assert sorted(path.name for path in kept.iterdir()) == ["permuted.gguf", "share-80.gguf"]

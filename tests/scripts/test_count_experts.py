"""A mixture's passes read further experts for each token: counted, not timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
SHAPE = ["--layers", "3", "--experts", "32", "--used", "4", "--embd", "128", "--ff", "64", "--independent"]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="experts are read as they are chosen on Linux only")
def test_passes_over_real_text_read_as_many_experts_as_expected(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for script, *arguments in (
        ("make_mixture.py", path, *SHAPE),
        ("count_experts.py", path, "--sizes", "1,2,4,8,16", "--rounds", "40", "-t", "1"),
    ):
        command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
        printed = subprocess.run(command, check=True, capture_output=True, timeout=100).stdout
    rows = json.loads(printed)
    assert rows["text"][0] == rows["repeated"][0] == 4
    assert rows["text"] == pytest.approx(rows["expected"], rel=0.1), "tokens of a text choose about independently"
    assert rows["text"][3] > 1.6 * rows["repeated"][3], "a token that is repeated hides what passes cost"
    assert rows["text"] == sorted(rows["text"])
    assert len(rows["ms"]) == len(rows["sizes"])

"""`scripts/bench_gpu` from the card to the page, with small models and stand-ins for llama.cpp's tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specrun.catalog import embedded
from tests.scripts.test_peers import COMPLETION, SPECULATIVE_SIMPLE

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
TOOL = "#!/bin/sh\ncat <<'END'\n{said}\nEND\n"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A build folder with tools that print what real ones printed."""
    folder = tmp_path / "tools" / "build" / "bin"
    folder.mkdir(parents=True)
    for name, said in {"llama-completion": COMPLETION, "llama-speculative-simple": SPECULATIVE_SIMPLE}.items():
        (folder / name).write_text(TOOL.format(said=said))
        (folder / name).chmod(0o755)
    return tmp_path / "tools"


def test_every_part_is_measured_and_a_later_run_replaces_its_own_only(tools: Path, tmp_path: Path) -> None:
    page = tmp_path / "page" / "gpu.md"

    def bench(*options: str) -> dict[str, dict[str, object]]:
        command = [sys.executable, "-m", "gpu_bench", "--quick", "--work", str(tmp_path / "work")]
        command += ["--build-dir", str(tools), "--output", str(page), *options]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
        result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return dict(json.loads((page.parent / "raw" / "gpu.json").read_text())["parts"])

    first = bench("--only", "passes", "--only", "exactness", "--only", "memory", "--parameters", "0.001")
    assert list(first) == ["passes", "exactness", "memory"]
    pair = ["--target", str(embedded.TARGET), "--draft", str(embedded.DRAFT)]
    later = bench("--only", "tune", "--only", "peers", *pair, "--layers", "1")
    assert {name: later[name] for name in first} == first
    assert {row["kind"] for row in later["tune"]["rows"]} == {"choice", "measured"}
    assert {row["program"] for row in later["peers"]["rows"]} == {"llama.cpp", "specrun"}
    text = page.read_text()
    for part in later.values():
        assert part["command"] in text

"""scripts/bench_first_runs.py: every kind of run writes its text, and the second begins with what the first learned."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from specrun.bench import BenchPrompt
from specrun.catalog import embedded

SCRIPTS = Path(__file__).parents[2] / "scripts"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module."""
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("bench_first_runs")
    sys.path.remove(str(SCRIPTS))


def test_all_runs_write_the_text(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "shipped", lambda kinds: [BenchPrompt(*kinds, "def add(a, b):")])
    bench = script.Bench("q8_0", "ram", embedded.TARGET, embedded.DRAFT, tmp_path)
    found: list[tuple[str, list[str]]] = []
    specrun = script.Bench.specrun

    def watched(own: object, data: Path, command: str, *options: str) -> str:
        found.append((data.name, sorted(path.name for path in data.glob("profiles/learned/*.json"))))
        return str(specrun(own, data, command, *options))

    monkeypatch.setattr(script.Bench, "specrun", watched)
    texts = script.texts(bench, script.RUNS, script.prompts_for("embedded", 1), 0.0, 32)
    assert list(texts) == ["off", "first run", "second run", "tuned"]
    assert all(script.rate(found) > 0 for found in texts.values())
    assert [name for name, _ in found] == ["learned", "learned", "learned", "profile-q8_0-ram"]
    assert [len(files) for _, files in found] == [0, 0, 1, 0]
    assert not (tmp_path / "learned").exists()

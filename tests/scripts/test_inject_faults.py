"""The script that injects faults: a few of each family, and that it notices what is lost."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform == "win32", reason="needs signals and limits")]

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module."""
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("inject_faults")
    sys.path.remove(str(SCRIPTS))


@pytest.mark.parametrize("name", ["SIGTERM while learning", "a context that does not fit", "at once: threads"])
def test_nothing_is_lost(
    script: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "QUICK", script.Extent(every=1.0, moments=1))
    monkeypatch.setattr(sys, "argv", ["inject_faults.py", "--quick", "--only", name])
    assert script.main() == 0, capsys.readouterr().out
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 3
    assert rows[2].endswith("| nothing |")


def test_a_loss_is_a_failure(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    injecting = importlib.import_module("fault_tools.injecting")
    ended = injecting.Ended(0, b"", "Traceback (most recent call last)\n  ...\nKeyError: 1\n", 1.0)
    fault = injecting.Fault("bad", lambda *_: iter([ended.injection({0}), injecting.Injection(0)]))
    monkeypatch.setattr(script, "FAULTS", [fault])
    monkeypatch.setattr(sys, "argv", ["inject_faults.py"])
    assert script.main() == 1
    assert "| bad | 2 | 0 | 1 x Traceback (most recent call last): KeyError: 1 |" in capsys.readouterr().out
    place = injecting.Place(tmp_path / "place")
    assert place.leftovers() == ""
    (place.data / "half.json").write_text("{")
    assert place.leftovers() == "half-written half.json"
    (place.data / ".file.json.17-0123abcd").touch()
    assert "behind" in place.leftovers()

"""What scripts/bench_residency.py makes of what its runs print."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module."""
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("bench_residency")
    sys.path.remove(str(SCRIPTS))


def test_the_bytes_are_those_that_the_cap_reports(script: ModuleType) -> None:
    output = "some text\ncapped.py: read 9534000000 bytes (9,092.3 MiB) from storage, 20 major page faults\n"
    assert script._bytes_read(output) == 9534000000
    assert script._bytes_read("capped.py: bytes read from storage unknown, 3 major page faults") == 0


def test_a_row_is_the_median_of_its_runs(script: ModuleType) -> None:
    plain = [script.Run(rate, 1e3 / rate, 1.0, 8_000_000) for rate in (1.0, 2.0, 9.0)]
    streamed = [script.Run(5.0, 200.0, 1.0, 3_000_000, n, 20.0) for n in (400_000_000, 420_000_000, 440_000_000)]
    lines = script.as_table({"plain": plain, "streamed": streamed}).splitlines()
    assert lines[2] == "| plain | 2.00 | 1.00 | 1.00 | 500 | 8 |  |  |"
    assert lines[3] == "| streamed | 5.00 | 2.50 | 1.00 | 200 | 3 | 420 | 20 |"

"""`specrun demo`, with a pair that a test can afford."""

from __future__ import annotations

import pytest

from specrun.demo import wide_pair
from specrun.tuning.tuner import EFFORTS, Effort
from tests.conftest import SpecrunHere
from tests.demo.conftest import small

__all__ = ["small"]


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_in_a_pipe_it_is_two_lines_of_figures(here: SpecrunHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", Effort(seconds=2, largest=64, rounds=1, n_positions=16, n_tokens=32))
    result = here("demo")
    assert result.code == 0, result
    assert [line.split()[:3] for line in result.stdout.splitlines()] == [
        ["plain", "160", "tokens"],
        ["specrun", "160", "tokens"],
    ]
    assert "that are free" in result.stderr
    assert "measuring this machine once" in result.stderr
    assert "the same text, " in result.stderr
    assert "times as fast" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    again = here("demo")
    assert again.code == 0, again
    assert "measuring this machine once" not in again.stderr
    assert here("demo", "--remove").stderr.endswith("are free again\n")
    assert not wide_pair.folder().exists()

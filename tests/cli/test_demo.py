"""`specrun demo`, with a pair that a test can afford."""

from __future__ import annotations

import pytest

from specrun.demo import wide_pair
from tests.conftest import SpecrunHere
from tests.demo.conftest import small

__all__ = ["small"]


@pytest.mark.usefixtures("small")
def test_in_a_pipe_it_is_two_lines_of_figures(here: SpecrunHere) -> None:
    result = here("demo")
    assert result.code == 0, result
    assert [line.split()[:3] for line in result.stdout.splitlines()] == [
        ["plain", "160", "tokens"],
        ["specrun", "160", "tokens"],
    ]
    assert "that are free" in result.stderr
    assert "the same text, " in result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    assert here("demo", "--remove").stderr.endswith("are free again\n")
    assert not wide_pair.folder().exists()

"""`specrun demo`, with a pair that a test can afford."""

from __future__ import annotations

import re
import sys

import pytest

from specrun import demo as wide_pair
from specrun.demo import ASKED
from tests.conftest import SpecrunHere
from tests.demo.conftest import small

__all__ = ["small"]


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_in_a_pipe_it_is_figures_and_what_follows_from_them(here: SpecrunHere) -> None:
    result = here("demo")
    assert result.code == 0, result
    plain, fast, verdict, in_ram, outlook, *table = result.stdout.splitlines()
    assert [line.split()[0] for line in (plain, fast)] == ["plain", "specrun"]
    assert re.match(r"the same text, \d+\.\d times as fast: .* from disk", verdict)
    assert in_ram.startswith("With all weights in RAM")
    assert outlook.startswith("On this machine")
    assert [line.split()[0] for line in table] == ["model", *ASKED]
    assert "that are free" in result.stderr
    assert "in both texts alike" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    assert here("demo", "--remove").stderr.endswith("are free again\n")
    assert not wide_pair.folder().exists()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_system_that_cannot_stream_is_told_what_to_expect_before_it_starts(
    here: SpecrunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    result = here("demo")
    assert result.code == 0, result
    assert "specrun streams weights on Linux only" in result.stderr
    assert "expect 0.5 to 1.5 times" in result.stderr
    assert "times as fast" in result.stdout
    assert "With all weights in RAM" not in result.stdout
    assert "On this machine" in result.stdout


@pytest.mark.usefixtures("small")
def test_what_cannot_be_deleted_is_said_in_a_line(here: SpecrunHere) -> None:
    wide_pair.folder().parent.mkdir(parents=True)
    wide_pair.folder().write_text("no folder")
    result = here("demo", "--remove")
    assert result.code == 1
    assert "cannot be deleted: Not a directory; delete it by hand" in result.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_without_room_for_the_pair_there_is_no_figure_in_ram(
    here: SpecrunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide_pair, "IN_RAM", 10**15)
    result = here("demo")
    assert result.code == 0, result
    assert "There is no figure with all weights in RAM" in result.stdout
    assert "from RAM" not in result.stdout

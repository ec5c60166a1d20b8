"""`specrun demo`, with a pair that a test can afford, and on terminals of several sizes."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.console import Console

import specrun
from specrun import demo as wide_pair
from specrun.cli import demo
from specrun.demo import ASKED, MOST_TOKENS, N_DRAFTED, Comparison
from specrun.hardware.cpu import LoadWatch, OtherLoad
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
    rates = re.search(r"by reading (.* disk \(measured[^)]*\)),", outlook)
    assert rates
    assert f"by reading {rates[1]}\n" in here("models", "list").stderr
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
    assert "from RAM (assumed)" in result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_programs_that_begin_to_compute_while_the_texts_are_written_are_seen(
    here: SpecrunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watch(LoadWatch):
        def after(self, _seconds: float = 0.0) -> OtherLoad:
            return OtherLoad(0.0, 2)

        def so_far(self) -> OtherLoad:
            return OtherLoad(1.0, 2)

    monkeypatch.setattr(demo, "LoadWatch", Watch)
    monkeypatch.setattr(demo, "usable_cores", lambda: 2)
    monkeypatch.setattr(wide_pair, "IN_RAM", 10**15)
    result = here("demo")
    assert result.code == 0, result
    assert "disk (measured while other programs held cores)" in result.stdout
    assert "both texts get" not in result.stderr


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    with specrun.load(learn=False, speculate="chain", depth=N_DRAFTED, threads=1) as model:
        comparison = Comparison(model)
        list(comparison.write())
    return comparison


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 50), (40, 24), (20, 10)])
def test_both_texts_fit_the_screen(
    comparison: Comparison, width: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_SECONDS_BETWEEN_FRAMES", 0.0)
    steps = [(0, comparison.plain.text), (1, comparison.fast.text)]
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, height=height, color_system=None)
    view = demo._View(comparison)
    for step in steps:
        view.add(*step)
    view.finish()
    console.print(view)
    lines = file.getvalue().splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    screen = "\n".join(lines)
    assert "plain" in screen
    assert "specrun" in screen
    assert width < 40 or screen.count("tokens/s") == 2
    demo._draw(comparison, steps, console)
    assert "comes next" in file.getvalue()


def test_two_lines_of_figures(comparison: Comparison) -> None:
    plain, fast = demo.lines(comparison).splitlines()
    assert plain.startswith(f"plain    {MOST_TOKENS} tokens in ")
    assert fast.startswith(f"specrun  {MOST_TOKENS} tokens in ")

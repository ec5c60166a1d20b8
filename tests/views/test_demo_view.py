"""The demonstration on terminals of several sizes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import specrun
from specrun.demo import MOST_TOKENS, N_DRAFTED, Comparison
from specrun.views import demo_view


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
    monkeypatch.setattr(demo_view, "_SECONDS_BETWEEN_FRAMES", 0.0)
    steps = [(0, comparison.plain.text), (1, comparison.fast.text)]
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, height=height, color_system=None)
    view = demo_view._View(comparison)
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
    demo_view._draw(comparison, steps, console)
    assert "comes next" in file.getvalue()


def test_two_lines_of_figures(comparison: Comparison) -> None:
    plain, fast = demo_view.lines(comparison).splitlines()
    assert plain.startswith(f"plain    {MOST_TOKENS} tokens in ")
    assert fast.startswith(f"specrun  {MOST_TOKENS} tokens in ")

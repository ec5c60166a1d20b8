"""Draws how often a head agreed with its target while it learned."""

from __future__ import annotations

from collections.abc import Sequence

from .estimate import Agreement

_WIDTH, _HEIGHT = 50, 12  # characters


def curve(points: Sequence[tuple[float, Agreement]]) -> str:
    """Text that shows the share of agreeing first tokens at levels 1 and 3 over the minutes of learning.

    points: agreement on held-out texts, each with the seconds spent before.
    """
    import plotille

    minutes = [seconds / 60 for seconds, _ in points]
    figure = plotille.Figure()
    figure.width, figure.height = _WIDTH, _HEIGHT
    figure.x_label, figure.y_label = "minutes", "% agree"
    figure.set_x_limits(min_=0, max_=max(minutes[-1], 1e-3))
    figure.set_y_limits(min_=0, max_=100)
    figure.with_colors = False
    figure.x_ticks_fkt = lambda value, _: f"{value:.4g}"
    figure.y_ticks_fkt = lambda value, _: f"{value:.0f}"
    for level in (0, 2):
        shares = [100 * found.same[level] for _, found in points]
        figure.plot(minutes, shares)
        figure.text([minutes[-1]], [shares[-1]], [str(level + 1)])
    return f"held-out text, levels 1 and 3 of a draft\n{figure.show(legend=False)}"

"""Benchmark rows as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specrun.bench.rows import Row
from specrun.views.plot_file import label_tree_sizes, new_figure, save

_GRID = " x "  # between the budget and the depth in the name of a row of a sweep


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw tokens/s to `path` (.png, .svg or .pdf): bars by kind of text and row with the range over repetitions, or,
    for a sweep, lines over the size of the tree. Raises UsageError if the file cannot be written.
    """
    kinds = list(dict.fromkeys(row.kind for row in rows))
    if any(_GRID in row.method for row in rows):
        figure = new_figure(6 * len(kinds), 4.5)
        for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
            _draw_sweep(axes, kind, [row for row in rows if row.kind == kind])
    else:
        figure = new_figure(max(6.0, 0.35 * len(rows)), 4.5)
        _draw_bars(figure.subplots(), kinds, rows)
    save(figure, path)


def _draw_bars(axes: Any, kinds: Sequence[str], rows: Sequence[Row]) -> None:
    methods = list(dict.fromkeys(row.method for row in rows))
    width = 0.8 / len(methods)
    for i, method in enumerate(methods):
        of_method = [row for row in rows if row.method == method]
        rates = [row.tokens_per_second for row in of_method]
        below = [row.tokens_per_second - row.tokens_per_second_min for row in of_method]
        above = [row.tokens_per_second_max - row.tokens_per_second for row in of_method]
        places = [kinds.index(row.kind) + (i + 0.5) * width - 0.4 for row in of_method]
        axes.bar(places, rates, width, yerr=[below, above], capsize=2, label=method)
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel("tokens/s")
    axes.legend(fontsize="small", ncols=max(1, len(methods) // 8))


def _draw_sweep(axes: Any, kind: str, rows: Sequence[Row]) -> None:
    """Tokens/s over the nodes of the tree: a line for each depth, one for chains, and a star for `auto`."""
    chains = [row for row in rows if row.method.startswith("chain ")]
    trees = [row for row in rows if _GRID in row.method]
    if chains:
        axes.plot([row.budget for row in chains], [row.tokens_per_second for row in chains], "o--", label="chain")
    for name, depth in sorted({(row.method.split()[0], row.depth) for row in trees}):
        line = [row for row in trees if row.method.split()[0] == name and row.depth == depth]
        label = f"{name}, {depth} deep"
        axes.plot([row.budget for row in line], [row.tokens_per_second for row in line], ".-", label=label)
    for row in rows:
        if row.method == "off":
            axes.axhline(row.tokens_per_second, color="gray", linestyle=":", label="plain decoding")
        elif row.method == "auto":
            axes.plot([row.budget], [row.tokens_per_second], "k*", markersize=13, label=f"auto: {row.plan}")
    label_tree_sizes(axes, kind, "x-small")

"""Benchmark rows as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specrun.bench.rows import Row
from specrun.errors import UsageError


def check(path: Path) -> None:
    """Raise UsageError if a plot could not be drawn to `path`, before hours of measuring find out."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'specrun[plot]'") from error
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot draws .png, .svg or .pdf files; got {path}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder; --plot needs one to write to")


def plot(rows: Sequence[Row], path: Path) -> None:
    """Bars of tokens/s by kind and row, with the range over repetitions, or for a sweep lines over the size of the
    tree; the format follows the file's ending.

    Raises UsageError if the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    if any(row.method.startswith("tree ") for row in rows):
        _draw_sweep(figure, rows)
    else:
        _draw_bars(figure, rows)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure. Raises UsageError if the file cannot be written."""
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _draw_bars(figure: Any, rows: Sequence[Row]) -> None:
    kinds = list(dict.fromkeys(row.kind for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    figure.set_size_inches(max(6.0, 0.35 * len(rows)), 4.5)
    axes = figure.subplots()
    width = 0.8 / len(methods)
    for i, method in enumerate(methods):
        of_method = {row.kind: row for row in rows if row.method == method}
        present = [kind for kind in kinds if kind in of_method]
        rates = [of_method[kind].tokens_per_second for kind in present]
        below = [of_method[kind].tokens_per_second - of_method[kind].tokens_per_second_min for kind in present]
        above = [of_method[kind].tokens_per_second_max - of_method[kind].tokens_per_second for kind in present]
        places = [kinds.index(kind) + (i + 0.5) * width - 0.4 for kind in present]
        axes.bar(places, rates, width, yerr=[below, above], capsize=2, label=method)
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel("tokens/s")
    axes.legend(fontsize="small", ncols=max(1, len(methods) // 8))


def _draw_sweep(figure: Any, rows: Sequence[Row]) -> None:
    """Tokens/s over the nodes of the tree, a line for each depth, one panel for each kind; `auto` is a star."""
    kinds = list(dict.fromkeys(row.kind for row in rows))
    figure.set_size_inches(6 * len(kinds), 4.5)
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        of_kind = [row for row in rows if row.kind == kind]
        chains = [row for row in of_kind if row.method.startswith("chain ")]
        trees = [row for row in of_kind if row.method.startswith("tree ")]
        axes.plot([row.budget for row in chains], [row.tokens_per_second for row in chains], "o--", label="chain")
        for depth in sorted({row.depth for row in trees}):
            line = [row for row in trees if row.depth == depth]
            label = f"tree, {depth} deep"
            axes.plot([row.budget for row in line], [row.tokens_per_second for row in line], ".-", label=label)
        for row in of_kind:
            if row.method == "off":
                axes.axhline(row.tokens_per_second, color="gray", linestyle=":", label="plain decoding")
            elif row.method == "auto":
                axes.plot([row.budget], [row.tokens_per_second], "k*", markersize=13, label=f"auto: {row.plan}")
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.set_title(kind)
        axes.set_xlabel("nodes of the tree")
        axes.set_ylabel("tokens/s")
        axes.legend(fontsize="x-small")

"""Pictures that matplotlib draws to files: rows of benchmarks, profiles, trees."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from specrun.bench.rows import Row
from specrun.errors import UsageError
from specrun.locations import whole_file
from specrun.profiles.profile import Profile
from specrun.speculation.shape import TreeShape
from specrun.views.tree_view import caption

_INCHES_PER_LEAF, _MIN_INCHES, _MAX_INCHES = 0.2, 3.0, 12.0  # height of the picture of a tree
_MIN_CHANCE = 1e-3  # chances below it have the same colour
_COLOURS = "viridis_r"
_GRID = " x "  # between the budget and the depth in the name of a row of a sweep


def check(path: Path) -> None:
    """Raise UsageError if no plot could be drawn to `path`; commands ask before they measure for minutes."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("--plot needs matplotlib; in a clone of specrun: pip install '.[plot]'") from error
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot draws .png, .svg or .pdf files; got {path}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder; --plot needs one to write to")


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure; the format follows the file's ending. Raises UsageError if that is impossible."""
    try:
        with whole_file(path.absolute()) as file:
            figure.savefig(file, format=path.suffix.removeprefix(".").lower())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def plot_rows(rows: Sequence[Row], path: Path) -> None:
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
    _label_tree_sizes(axes, kind, "x-small")


def plot_profile(profile: Profile, path: Path) -> None:
    """Draw what passes take to `path` (.png, .svg or .pdf). Raises UsageError if it cannot be written."""
    figure = new_figure(6, 4.5)
    _draw_costs(figure.subplots(), profile)
    save(figure, path)


def _draw_costs(axes: Any, profile: Profile) -> None:
    for name, table in (("target", profile.costs.target), ("draft", profile.costs.draft)):
        if table is None:
            continue
        for ctx in sorted({t.ctx for t in table.times}):
            points = [t for t in table.times if t.ctx == ctx]
            label = f"{name}, context {ctx}"
            axes.errorbar([t.n for t in points], [t.ms for t in points], [t.spread for t in points],
                          marker=".", capsize=2, label=label)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens of a pass")
    axes.set_ylabel("ms")
    axes.legend(fontsize="small")


def plot_tree(shape: TreeShape, acceptance: Sequence[float], path: Path) -> None:
    """Draw the tree to `path` (.png, .svg or .pdf), from left to right. Raises UsageError if it cannot be written."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LogNorm

    figure = new_figure(8, min(max(_INCHES_PER_LEAF * shape.n_leaves, _MIN_INCHES), _MAX_INCHES))
    axes: Any = figure.subplots()
    leaves_before = accumulate((count == 0 for count in shape.child_counts[:-1]), initial=0)
    places = list(zip(shape.depths, leaves_before, strict=True))
    norm = LogNorm(_MIN_CHANCE, 1)
    chances = shape.chances(acceptance).clip(min=_MIN_CHANCE)
    # The lines to siblings overlap at their beginning; the likeliest is drawn last, on top.
    order = sorted(range(1, shape.n_nodes), key=chances.__getitem__)
    edges = [_elbow(places[shape.parents[node]], places[node]) for node in order]
    axes.add_collection(LineCollection(edges, array=chances[order], cmap=_COLOURS, norm=norm, linewidths=1, zorder=1))
    dots = axes.scatter(*zip(*places, strict=True), s=12, c=chances, cmap=_COLOURS, norm=norm)
    figure.colorbar(dots, label="chance to be accepted", extend="min")
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.set_xticks(range(0, shape.depth + 1, max(shape.depth // 12, 1)))
    axes.set_xlabel("level")
    axes.set_title(caption(shape, acceptance), fontsize="medium")
    save(figure, path)


def _elbow(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[float, float]]:
    middle = (start[0] + end[0]) / 2
    return [start, (middle, start[1]), (middle, end[1]), end]


def _label_tree_sizes(axes: Any, title: str, legend_size: str) -> None:
    """Label axes that show tokens per second over the nodes of the tree."""
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.set_xlabel("nodes of the tree")
    axes.set_ylabel("tokens/s")
    axes.legend(fontsize=legend_size)

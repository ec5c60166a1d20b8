"""Files that matplotlib draws to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specrun.errors import UsageError
from specrun.locations import whole_file


def check(path: Path) -> None:
    """Raise UsageError if no plot could be drawn to `path`; commands ask before they measure for minutes."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'specrun[plot]'") from error
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


def label_tree_sizes(axes: Any, title: str, legend_size: str) -> None:
    """Label axes that show tokens per second over the nodes of the tree."""
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.set_xlabel("nodes of the tree")
    axes.set_ylabel("tokens/s")
    axes.legend(fontsize=legend_size)


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure; the format follows the file's ending. Raises UsageError if that is impossible."""
    try:
        with whole_file(path.absolute()) as file:
            figure.savefig(file, format=path.suffix.removeprefix(".").lower())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error

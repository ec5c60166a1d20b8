"""Files that matplotlib draws to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specrun.errors import UsageError


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


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure; the format follows the file's ending. Raises UsageError if that is impossible."""
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error

"""A profile as a picture: both cost tables, and predicted speed by tree size with the chosen plan marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specrun.profiles.profile import Profile
from specrun.speculation.method import OFF
from specrun.speculation.registry import METHODS
from specrun.tuning.result import best_by_size
from specrun.views.bench_plot import save


def plot(profile: Profile, path: Path) -> None:
    """Draw to `path` (.png, .svg or .pdf). Raises UsageError if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * (1 + len(profile.plans)), 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 1 + len(profile.plans), squeeze=False)[0]
    _draw_costs(axes[0], profile)
    for axis, plan in zip(axes[1:], profile.plans, strict=True):
        _draw_sizes(axis, profile.predictions.get(f"{plan.temperature}", []), plan)
    save(figure, path)


def _draw_costs(axis: Any, profile: Profile) -> None:
    for name, table in (("target", profile.costs.target), ("draft", profile.costs.draft)):
        if table is None:
            continue
        for ctx in sorted({t.ctx for t in table.times}):
            points = [t for t in table.times if t.ctx == ctx]
            label = f"{name}, context {ctx}"
            axis.errorbar([t.n for t in points], [t.ms for t in points], [t.spread for t in points],
                          marker=".", capsize=2, label=label)  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("tokens of a pass")
    axis.set_ylabel("ms")
    axis.legend(fontsize="small")


def _draw_sizes(axis: Any, predictions: list[dict[str, Any]], plan: Any) -> None:
    for name in dict.fromkeys(entry["method"] for entry in predictions):
        method = METHODS[name]
        if method.is_adaptive or method is OFF:
            continue
        best = best_by_size(predictions, {OFF, method}.__contains__)
        sizes = sorted(best)
        axis.plot(sizes, [best[n] for n in sizes], marker=".", label=f"best {name}, predicted")
    axis.plot([plan.plan.budget], [plan.predicted_tokens_per_second], "k*", markersize=12, label=f"chosen: {plan.plan}")
    axis.axhline(plan.plain_tokens_per_second, color="gray", linestyle=":", label="plain decoding")
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=0)
    axis.set_title(f"temperature {plan.temperature:g}")
    axis.set_xlabel("nodes of the tree")
    axis.set_ylabel("tokens/s")
    axis.legend(fontsize="small")

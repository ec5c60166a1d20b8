"""A profile as a picture: the cost tables, and predicted speed by tree size with the chosen plan marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specrun.profiles.profile import PredictionRow, Profile, TunedPlan, best_by_size
from specrun.speculation.method import OFF
from specrun.speculation.registry import METHODS
from specrun.views.plot_file import label_tree_sizes, new_figure, save


def plot(profile: Profile, path: Path) -> None:
    """Draw to `path` (.png, .svg or .pdf). Raises UsageError if it cannot be written."""
    n_panels = 1 + len(profile.plans)
    figure = new_figure(5 * n_panels, 4)
    panels = figure.subplots(1, n_panels, squeeze=False)[0]
    _draw_costs(panels[0], profile)
    for axes, plan in zip(panels[1:], profile.plans, strict=True):
        _draw_sizes(axes, profile.predictions.get(plan.temperature, []), plan)
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


def _draw_sizes(axes: Any, rows: Sequence[PredictionRow], plan: TunedPlan) -> None:
    for name in dict.fromkeys(row.method for row in rows):
        method = METHODS[name]
        if method.is_adaptive or method is OFF:
            continue
        best = best_by_size(rows, {OFF, method}.__contains__)
        sizes = sorted(best)
        axes.plot(sizes, [best[n] for n in sizes], marker=".", label=f"best {name}, predicted")
    axes.plot([plan.plan.budget], [plan.predicted_tokens_per_second], "k*", markersize=12, label=f"chosen: {plan.plan}")
    axes.axhline(plan.plain_tokens_per_second, color="gray", linestyle=":", label="plain decoding")
    label_tree_sizes(axes, f"temperature {plan.temperature:g}", "small")

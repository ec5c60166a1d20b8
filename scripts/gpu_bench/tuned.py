"""What `specrun tune` chose and expected, and what a grid of chains and trees does on the same prompts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_bench.bench import Bench, PartError

KINDS = "code"  # prompts of `specrun bench`, which `specrun tune` does not use
TEMPERATURE = 0.0
N_TOKENS = 48
_GRIDS = (
    ("chain,auto", ("--depths", "2,4,8,16", "--budgets", "4")),
    ("tree", ("--budgets", "16,64,256,512", "--depths", "8,24")),
)
_QUICK_GRIDS = (("chain,auto", ("--depths", "4", "--budgets", "4")),)
_QUICK_S = 240.0  # seconds below which `specrun tune` measures less
_TUNE_SHARE = 0.6  # of a place's time


def profile_folder(work: Path, layers: str, target: Path) -> Path:
    """The data folder with the profile of a target with so many layers in VRAM."""
    return work / f"profile-{target.stem}-{layers}"


def rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """For each number of layers in VRAM a row of the choice, then one for each plan that was measured."""
    pair = bench.models.pair
    for i, layers in enumerate(bench.layers):
        seconds = bench.share(len(bench.layers) - i)
        data = profile_folder(bench.work, layers, pair.target)
        bench.run.show(f"tune: layers in VRAM: {layers}")
        quick = ["--quick"] if bench.quick or seconds < _QUICK_S else []
        began = time.perf_counter()
        try:
            options = ["--temp", f"{TEMPERATURE:g}", "--json", *quick]
            profile = bench.specrun(data, "tune", layers, *options, deadline=began + _TUNE_SHARE * seconds)
        except PartError as error:
            bench.note(f"layers in VRAM: {layers}: {error}")
            continue
        yield _choice(layers, profile) | {"quick": bool(quick)}
        for methods, grid in _QUICK_GRIDS if bench.quick else _GRIDS:
            bench.run.show(f"tune: layers in VRAM: {layers}, a grid of {methods}")
            options = ["--kinds", KINDS, "--methods", methods, *grid, "--repeat", "1", "-o", "json"]
            options += ["-n", str(N_TOKENS), "--temp", f"{TEMPERATURE:g}"]
            try:
                found = bench.specrun(data, "bench", layers, *options, deadline=began + seconds)
            except PartError as error:
                bench.note(f"layers in VRAM: {layers}, a grid of {methods}: {error}")
                break
            yield from (_measured(layers, methods, row) for row in found)


def _choice(layers: str, profile: dict[str, Any]) -> dict[str, Any]:
    """What was chosen, and what was tried before."""
    chosen = profile["plan"]
    return {
        "layers": layers,
        "kind": "choice",
        "plan": _described(chosen),
        "predicted": chosen["predicted_tokens_per_second"],
        "plain": chosen["plain_tokens_per_second"],
        "settings": {name: value for name, value in profile["settings"].items() if value is not None},
        "tried": [{"name": one["name"], "score": one["score"], "ms": one["ms"]} for one in profile["tried"]],
        "passes": profile["tables"]["target"],
        "draft_passes": profile["tables"]["draft"],
        "placement": profile["picture"],
    }


def _described(plan: dict[str, Any]) -> str:
    return f"{plan['method']}, {plan['budget']} nodes, {plan['depth']} deep"


def _measured(layers: str, methods: str, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "layers": layers,
        "kind": "measured",
        "grid": methods,
        "row": row["method"],
        "plan": row["plan"],
        "predicted": row["predicted_tokens_per_second"],
        "measured": row["tokens_per_second"],
        "tokens_per_pass": row["tokens_per_pass"],
        "target_ms": row["target_ms"],
        "draft_ms": row["draft_ms"],
    }

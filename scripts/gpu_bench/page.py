"""The page: Markdown from the raw file. Every number in it is of a measured row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = dict[str, Any]

TITLES = {
    "passes": "What passes cost",
    "exactness": "The same bits",
    "memory": "Memory on the card",
    "tune": "What tune chose, beside a grid",
    "peers": "Beside llama.cpp",
}
_MIB = 2**20


def page(data: dict[str, Any]) -> str:
    """The whole page. data: what the raw file holds."""
    machine = data["machine"]
    lines = [
        f"# On a graphics card: {', '.join(machine['cards'])}",
        "",
        "`scripts/bench_gpu` measured and wrote this page; what it measured is in the JSON file beside it.",
        f"The machine is {machine['cpu']}, {machine['ram']}, {machine['system']}; card: {', '.join(machine['cards'])}.",
        "",
    ]
    for name, part in data["parts"].items():
        software = ", ".join(f"{what} {version}" for what, version in part["software"].items())
        lines += [f"## {TITLES[name]}", "", "```sh", part["command"], "```", ""]
        lines += [
            f"Measured on {part['date']} in {part['seconds']:.0f} s, with {software}.",
            f"Models: {part['models']}.",
            "",
        ]
        lines += _TABLES[name](part["rows"])
        lines += [f"- {note}" for note in part["notes"]]
        lines += [""] * bool(part["notes"])
    return "\n".join(lines).rstrip() + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table, and an empty line."""
    body = [f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *body, ""]


def _passes(rows: Sequence[Row]) -> list[str]:
    sizes = sorted({int(n) for row in rows for n in row["ms"]})
    lines = ["Milliseconds of a pass by its tokens, medians, after 64 tokens:", ""]

    def copied(row: Row) -> str:
        if not row["is_split"]:
            return ""
        return f"passes of {row['copied_from']}" if row["copied_from"] else "never"

    def placed(row: Row) -> list[str]:
        model = " ".join([row["model"], *(f"{name}={value}" for name, value in row["environment"].items())])
        return [model, row["layers"] if row["n_layers"] < 0 else f"{row['layers']} ({row['n_layers']})"]

    def times(row: Row, name: str) -> list[str]:
        return [_number(row[name].get(str(n))) for n in sizes]

    head = ["model", "layers in VRAM", "weights in RAM", "copied from", *map(str, sizes)]
    lines += table(head, ([*placed(row), row["weights_in_ram"] or "", copied(row), *times(row, "ms")] for row in rows))
    first = [row for row in rows if row.get("first") and not row["is_split"]]
    if first:
        lines += ["The first pass of each size, after one of another size and those that loading makes:", ""]
        lines += table([*head[:2], *map(str, sizes)], ([*placed(row), *times(row, "first")] for row in first))
    return lines


def _exactness(rows: Sequence[Row]) -> list[str]:
    has_sms = any(row["sms"] for row in rows)
    lines = [
        "Sizes of passes that give a token the same bits in logits and KV cache, all layers in VRAM; tokens on both"
    ]
    lines += ["sides of a number of cells are compared. The class is what `--exact` keeps to there.", ""]
    head = ["flash attention", *["multiprocessors"] * has_sms, "cells", "class", "sizes with the same bits"]
    return lines + table(
        head,
        (
            [
                row["flash"],
                *[row["sms"] or "all"] * has_sms,
                row["boundary"],
                row["exact"],
                "; ".join(", ".join(map(str, group)) for group in row["groups"] if len(group) > 1) or "none",
            ]
            for row in rows
        ),
    )


def _memory(rows: Sequence[Row]) -> list[str]:
    lines = [
        "MiB on the card: what specrun plans for weights, KV cache and buffers, what llama.cpp's log says of them, and"
    ]
    lines += ["what the device misses after a pass over 64 tokens, which has the driver's own part too.", ""]
    head = ["model", "layers in VRAM", "context", "planned", "logged", "missing", "planned / missing"]
    return lines + table(
        head,
        (
            [
                row["model"],
                row["layers"],
                row["ctx_size"],
                *(f"{row[key] / _MIB:,.0f}" for key in ("planned_bytes", "logged_bytes", "missing_bytes")),
                f"{row['planned_bytes'] / row['missing_bytes']:.2f}" if row["missing_bytes"] > 0 else "",
            ]
            for row in rows
        ),
    )


def _tune(rows: Sequence[Row]) -> list[str]:
    lines: list[str] = []
    for layers in dict.fromkeys(row["layers"] for row in rows):
        lines += [f"### Layers in VRAM: {layers}", ""]
        own = [row for row in rows if row["layers"] == layers]
        for row in (row for row in own if row["kind"] == "choice"):
            settings = ", ".join(f"{name} {value}" for name, value in row["settings"].items()) or "no others"
            effort = " (`--quick`)" if row["quick"] else ""
            lines += [
                f"`specrun tune`{effort} chose {row['plan']}; settings: {settings}.",
                f"It expects {row['predicted']:.2f} tokens/s, and {row['plain']:.2f} without speculation.",
                "",
            ]
        keys = "predicted", "measured", "tokens_per_pass"
        measured = sorted((row for row in own if row["kind"] == "measured"), key=lambda row: -row["measured"])
        if measured:
            lines += table(
                ["row", "plan", "predicted tokens/s", "measured tokens/s", "tokens a pass"],
                ([row["row"], row["plan"], *(_number(row[key]) for key in keys)] for row in measured),
            )
    return lines


def _peers(rows: Sequence[Row]) -> list[str]:
    lines: list[str] = []
    for layers in dict.fromkeys(row["layers"] for row in rows):
        own = [row for row in rows if row["layers"] == layers]
        plain = next((row["rate"] for row in own if row["program"] == "llama.cpp" and row["plan"] == "off"), None)
        lines += [f"### Layers in VRAM: {layers}", ""]
        lines += table(
            ["program", "row", "plan", "tokens/s", "times llama.cpp plain", "tokens a pass"],
            (
                [
                    row["program"],
                    row["row"],
                    row["plan"],
                    _number(row["rate"]),
                    _number(row["rate"] / plain if plain else None),
                    _number(row["tokens_per_pass"]),
                ]
                for row in own
            ),
        )
    return lines


def _number(value: float | None) -> str:
    """Three digits or more; empty where nothing was measured."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


_TABLES: dict[str, Callable[[Sequence[Row]], list[str]]] = {
    "passes": _passes, "exactness": _exactness, "memory": _memory, "tune": _tune, "peers": _peers,
}  # fmt: skip

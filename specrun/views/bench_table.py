"""Benchmark rows as a table in the terminal, and as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from specrun.bench.rows import Row
from specrun.display_text import rate_text
from specrun.views import output
from specrun.views.fitting_table import FittingTable

_HEAD = ("kind", "method", "plan", "tokens/s", "(range)", "ratio", "tok/pass", "by depth", "predicted", "first",
         "memory")  # fmt: skip
_TEXTS = ("method", "plan")
_OPTIONAL = ("memory", "first", "by depth", "predicted", "(range)")
_MOST_DEPTHS = 6  # of the column "by depth"


def as_table(rows: Sequence[Row]) -> FittingTable:
    """A table for the terminal, with a heading for each kind of text; the fastest row of each is bold."""
    figures = [name for name in _HEAD[1:] if name not in _TEXTS]
    table = output.table(*_HEAD[1:], right=figures, optional=_OPTIONAL)
    for kind in dict.fromkeys(row.kind for row in rows):
        of_kind = [row for row in rows if row.kind == kind]
        fastest = max(of_kind, key=lambda row: row.tokens_per_second)
        table.add_heading(kind)
        for row in of_kind:
            table.add_row(*_cells(row)[1:], style="bold" if row is fastest else None)
    return table


def as_text(rows: Sequence[Row], form: str) -> str:
    """The rows as text that programs read. form: json, jsonl, csv or md."""
    objects = [row.as_json() for row in rows]
    if form == "json":
        return json.dumps(objects, indent=1) + "\n"
    if form == "jsonl":
        return "".join(json.dumps(entry) + "\n" for entry in objects)
    if form == "csv":
        out = io.StringIO()
        writer = csv.DictWriter(out, list(objects[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(objects)
        return out.getvalue()
    return markdown(_HEAD, [_cells(row) for row in rows])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return "".join(f"| {line} |\n" for line in lines)


def _cells(row: Row) -> list[str]:
    predicted = row.predicted_tokens_per_second
    return [
        row.kind,
        row.method,
        row.plan if row.method != "auto" else "",
        rate_text(row.tokens_per_second),
        f"({rate_text(row.tokens_per_second_min)}-{rate_text(row.tokens_per_second_max)})",
        f"{row.ratio:.2f}",
        f"{row.tokens_per_pass:.2f}",
        " ".join(f"{100 * share:.0f}" for share in row.acceptance_by_depth[:_MOST_DEPTHS]),
        "" if predicted is None else rate_text(predicted),
        f"{row.first_token_seconds * 1e3:.0f} ms",
        f"{row.memory_bytes / 2**20:.0f} MiB",
    ]


def compare(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each row that both results have, by kind and method: both rates, their quotient, and both ratios."""
    by_name = {(row["kind"], row["method"]): row for row in before}
    lines = []
    for b in after:
        if a := by_name.get((b["kind"], b["method"])):
            rates = [a["tokens_per_second"], b["tokens_per_second"]]
            figures = [*(f"{rate:.2f}" for rate in rates), f"{rates[1] / rates[0]:.3f}"]
            lines.append([str(b["kind"]), str(b["method"]), *figures, f"{a['ratio']:.2f}", f"{b['ratio']:.2f}"])
    return lines


COMPARE_HEAD = ("kind", "method", "tokens/s A", "tokens/s B", "B / A", "ratio A", "ratio B")

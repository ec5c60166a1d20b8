"""Tables of models: the catalog, where a line above each family says what drafts for it, and drafts that were made."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from specrun.catalog.cache import LocalModel
from specrun.catalog.entries import COMPANIONS, Entry, can_draft
from specrun.catalog.info import kind_of
from specrun.display_text import one_line, size_text
from specrun.hardware.fit import Fits
from specrun.loading.local_fit import LocalFits, readable
from specrun.views.output import FittingTable

if TYPE_CHECKING:
    from specrun.making.make import Result
    from specrun.making.measuring import Quality

_HEADS = ("model", "size", "kind", "fits", "tok/s", "draft", "notes")
# Where a model's weights lie, in words of which the longest leave room for the others in 80 columns.
PLACES: dict[Fits, str] = {"vram": "in VRAM", "partly": "partly", "ram": "in RAM", "streamed": "streamed", "no": "no"}


def row_of(entry: Entry | None, model: LocalModel | None, fits: LocalFits) -> dict[str, Any]:
    """What `specrun models list --json` prints of a model of the catalog, or of one on this machine, or of both."""
    path, program = (model.path, model.program) if model else (None, None)
    found = fits.of(entry, path)
    row: dict[str, Any] = dict.fromkeys(("name", "alias", "quantization", "licence", "family", "about"))
    if entry:
        row |= {"name": entry.alias} | asdict(entry) | {"kind": entry.kind, "estimated_bytes": entry.expected_bytes}
    elif model:
        file, n_bytes = readable(model.path), model.n_bytes
        row |= {"name": model.name, "repo": model.repo, "file": model.file, "kind": kind_of(file) if file else None}
        row |= {"bytes": n_bytes, "estimated_bytes": n_bytes, "drafts": [], "companions": []}
        row |= {"verified": False, "recommended": False}
    row |= {"here": model is not None, "path": str(path) if path else None, "program": program}
    rate = round(found.tokens_per_second, 2) if found else None
    return row | {"fits": found.fits if found else None, "tokens_per_second": rate}


def models_table(rows: Sequence[dict[str, Any]]) -> Group:
    """The rows of `specrun models list --json`, neighbours of one family under one line.

    Names of models that are not in the catalog are long, so these have a table of their own.
    """
    others, known = [row for row in rows if not row["family"]], [row for row in rows if row["family"]]
    parts: list[RenderableType] = [part for some in (others, known) if some for part in (Text(), _table(some))]
    return Group(*parts[1:])


def _table(rows: Sequence[dict[str, Any]]) -> FittingTable:
    table = FittingTable(*_HEADS, right=("size", "tok/s"), optional=("kind", "draft", "tok/s"))
    for _, group in itertools.groupby(rows, key=lambda row: row["family"]):
        members = list(group)
        table.add_heading(_heading(members))
        for row in members:
            table.add_row(*_cells(row, members[0]["licence"]))
    return table


def _heading(members: Sequence[dict[str, Any]]) -> Text:
    """What a family is, its licence, and what drafts for it besides the text itself."""
    row = members[0]
    if not row["family"]:
        return Text("not in the catalog", style="bold")
    text = Text.assemble((one_line(row["family"]), "bold"))
    if row["licence"]:
        text.append(f" ({one_line(row['licence'])})")
    if row["about"]:
        text.append(f": {one_line(row['about'])}")
    # The order is the catalog's, which has the best known first.
    found = list(dict.fromkeys(name for member in members for name in member["companions"]))
    shown = {name: "small siblings" if name == "sibling" else COMPANIONS[name] for name in found}
    shown |= {name: f"{shown[name]} (best known)" for name in found[:1] if len(found) > 1}
    usable = {name for member in members for name in member["companions"] if can_draft(name, member["architecture"])}
    here, elsewhere = ([shown[name] for name in found if (name in usable) is runs_here] for runs_here in (True, False))
    drafts = f"Drafts: {', '.join(here) or 'the text itself'}"
    other = f"; published, but not for specrun: {', '.join(elsewhere)}" if elsewhere else ""
    return text.append(f". {drafts}{other}", style="dim")


def _cells(row: dict[str, Any], licence: str | None) -> tuple[str, ...]:
    name = one_line(row["name"])
    mark = "" if row["verified"] or row["here"] else " ?"
    size, drafts = row["bytes"] or row["estimated_bytes"], row["drafts"]
    notes = [f"here ({row['program']})" if row["program"] else "here"] if row["here"] else []
    notes += ["recommended"] if row["recommended"] else []
    notes += [row["licence"]] if row["licence"] and row["licence"] != licence else []
    return (
        f"{name}{mark}",
        f"{'' if row['bytes'] else '~'}{size_text(size)}" if size else "",
        row["kind"] or "?",
        PLACES.get(row["fits"], "?"),
        about_rate(row["tokens_per_second"]),
        f"{drafts[0]} +{len(drafts) - 1}" if len(drafts) > 1 else "".join(drafts),
        ", ".join(map(one_line, notes)),
    )


def about_rate(tokens_per_second: float | None) -> str:
    """A rate that is only estimated; empty where there is none."""
    if not tokens_per_second:
        return ""
    return f"~{tokens_per_second:.{0 if tokens_per_second >= 10 else 1 if tokens_per_second >= 0.1 else 2}f}"


def made_drafts_table(result: Result, usual: str) -> FittingTable:
    """What came of each draft that was made, beside plain decoding and the usual draft, as its name has it."""
    figures = ("size", "agrees", "overlap", "of target", "best tree", "expected")
    table = FittingTable("draft", *figures, "", right=figures, optional=("overlap", "of target", "best tree"))
    table.add_row("plain decoding", size_text(result.target.n_bytes), "", "", "", "", "1.00 x", "")
    for outcome in result.outcomes:
        size = size_text(outcome.n_bytes) if outcome.n_bytes else ""
        remark = "kept" if outcome is result.best else outcome.reason
        table.add_row(outcome.candidate.name, size, *_quality_cells(outcome.quality), remark)
    if result.rival:
        table.add_row(usual, "", *_quality_cells(result.rival), "used until now")
    return table


def _quality_cells(quality: Quality | None) -> list[str]:
    if quality is None:
        return [""] * 5
    shares = [f"{share:.0%}" for share in (quality.agreement, quality.overlap, quality.cost)]
    tree = quality.tree
    name = f"chain of {tree.depth}" if tree.n_leaves == 1 else f"{tree.n_nodes} nodes, {tree.depth} deep"
    return [*shares, name, f"{quality.speedup:.2f} x"]

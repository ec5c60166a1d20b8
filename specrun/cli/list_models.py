"""`specrun models list`: the catalog, what is here, and what fits this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specrun.views import output

if TYPE_CHECKING:
    from specrun.catalog.cache import CachedModel
    from specrun.catalog.entries import Entry
    from specrun.engine.local_fit import LocalFits


def list_models(
    cached: Annotated[
        bool, typer.Option("--cached", help="Only models on this machine, including those that other programs fetched.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """List the catalog: what is for whom, what drafts, what fits the memory that is free here, and roughly how fast.

    `fits` says where placement would put a model with its draft at a context of 4,096 tokens: vram, partly (in VRAM),
    ram, streamed (from disk in every pass), or no. Tokens per second are an estimate of plain decoding. Nothing is
    downloaded.
    """
    from specrun.catalog import cache, entries
    from specrun.catalog.names import of_entry
    from specrun.engine.local_fit import LocalFits

    catalog = entries.catalog()
    fits = LocalFits.now(catalog)
    rows = [_entry_row(entry, cache.find(of_entry(entry)), fits) for entry in catalog.values()]
    if cached:
        in_catalog = {(row["repo"], row["file"]) for row in rows}
        rows = [row for row in rows if row["cached"]]
        others = [model for model in cache.models() if (model.repo, model.file) not in in_catalog]
        rows += [_cached_row(model, fits) for model in others]
    if json:
        output.write_json(rows)
        return
    if not rows:
        output.note("no models in the Hugging Face cache yet; `specrun pull NAME` fetches one")
        return
    from specrun.views.models_table import models_table

    output.print_table(models_table(rows))
    output.note(fits.explanation)
    if not all(row["verified"] or row["cached"] for row in rows):
        output.note("?: not verified; `specrun models check NAME` asks the hub")


def _entry_row(entry: Entry, path: Path | None, fits: LocalFits) -> dict[str, Any]:
    facts = asdict(entry) | {"kind": entry.kind, "estimated_bytes": entry.expected_bytes}
    return facts | {"cached": path is not None, "path": str(path) if path else None} | _fit(fits, entry, path)


def _cached_row(model: CachedModel, fits: LocalFits) -> dict[str, Any]:
    from specrun.catalog.gguf_file import GgufFile
    from specrun.catalog.info import kind_of
    from specrun.errors import ModelFileError

    row: dict[str, Any] = {"alias": None, "repo": model.repo, "file": model.file, "bytes": model.bytes}
    row |= {"estimated_bytes": model.bytes, "path": str(model.path), "quantization": None, "licence": None}
    row |= {"drafts": [], "companions": [], "family": None, "about": None, "cached": True, "verified": False}
    try:
        kind = kind_of(GgufFile.read(model.path))
    except ModelFileError:
        kind = None  # `specrun models info` says what is wrong with it
    return row | {"kind": kind} | _fit(fits, None, model.path)


def _fit(fits: LocalFits, entry: Entry | None, path: Path | None) -> dict[str, Any]:
    found = fits.of(entry, path)
    rate = round(found.tokens_per_second, 2) if found else None
    return {"fits": found.fits if found else None, "tokens_per_second": rate}

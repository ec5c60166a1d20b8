"""`specrun models`: what there is, what is here, fetch it, remove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specrun.cli import output
from specrun.cli.make_draft import forget_draft, make_draft
from specrun.errors import MissingModelError, SpecrunError, UsageError
from specrun.units import size_text

if TYPE_CHECKING:
    from rich.table import Table

    from specrun.catalog.entries import Entry
    from specrun.catalog.fitting import Pair
    from specrun.catalog.hub import RemoteModel
    from specrun.catalog.names import HubName

app = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")

Names = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="Aliases, ALIAS:QUANT, org/repo:QUANT or org/repo/file.gguf.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Alias, ALIAS:QUANT, org/repo:QUANT, or a path.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.callback()
def models(context: typer.Context) -> None:
    """List, fetch, check and remove models."""
    if context.invoked_subcommand is None:
        print(context.get_help(), end="")
        raise typer.Exit(2)


@app.command("list")
def list_models(
    cached: Annotated[
        bool, typer.Option("--cached", help="What is on this machine, also what other programs fetched.")
    ] = False,
    json: Json = False,
) -> None:
    """The catalog: names, sizes, licences, recommended drafts, and what is on this machine."""
    from specrun.catalog import cache, entries, names

    rows = [
        _facts(entry, cache.find(names.HubName(entry.alias, entry.repo, entry.revision, entry.file, None, entry)))
        for entry in entries.catalog().values()
    ]
    if cached:
        known = {(row["repo"], row["file"]) for row in rows}
        rows = [row for row in rows if row["cached"]]
        rows += [
            {"alias": None, "repo": model.repo, "file": model.file, "bytes": model.bytes, "path": str(model.path)}
            | {"quantization": None, "licence": None, "drafts": [], "cached": True, "verified": False}
            for model in cache.models()
            if (model.repo, model.file) not in known
        ]
    if json:
        output.write_json(rows)
        return
    if not rows:
        output.note("no models in the Hugging Face cache yet; specrun pull NAME fetches one")
        return
    output.print_table(_table(rows))
    if not all(row["verified"] or row["cached"] for row in rows):
        output.note("? not verified; specrun models check NAME asks the hub")


def pull(
    names: Names,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be fetched, and fetch nothing.")] = False,
    json: Json = False,
) -> None:
    """Fetch models into the Hugging Face cache; an interrupted download goes on where it stopped.

    On a terminal it shows sizes and licences and asks first.
    """
    from specrun.cli import pulling

    located = [_on_hub(name) for name in names]
    missing = [model for name, model, path in located if path is None]
    for name, _, path in located:
        if path is not None:
            output.note(f"{name} is already here")
    found = pulling.look_up(missing)
    done = pulling.fetch(found, ask=pulling.can_ask() and not yes, dry_run=dry_run) if found else True
    if not done and not dry_run:
        raise MissingModelError(f"{' and '.join(model.name for model in found)} not fetched, as you wished")
    if json:
        remote = {model.name: model for model in found}
        output.write_json([_pulled(name, remote) for name in names])
    elif not dry_run:
        for name in names:
            output.write(f"{_path(name)}\n")


app.command("pull")(pull)
app.command("make-draft")(make_draft)


@app.command("path")
def path(name: Name) -> None:
    """Where a model is on this machine: its file, or its first shard."""
    output.write(f"{_path(name)}\n")


@app.command("rm")
def remove(names: Names, yes: Yes = False) -> None:
    """Delete models from the Hugging Face cache, which other programs share, and drafts that were made from them."""
    from specrun.catalog import cache, made
    from specrun.cli import pulling

    found = []
    for name in names:
        _, model, place = _on_hub(name)
        if place is None:
            raise MissingModelError(f"{name} is not on this machine; `specrun models list --cached` shows what is")
        found.append((name, model.repo, place))
    if not yes:
        if not pulling.can_ask():
            raise UsageError("rm deletes without asking only with --yes; add it")
        also = " and what was made from it as a draft" if any(made.find(place) for _, _, place in found) else ""
        if not pulling.confirmed(f"Delete {', '.join(names)}{also}?", default=False):
            return
    for name, repo, place in found:
        file = cache.file_in_repository(repo, place)
        forget_draft(place)
        output.note(f"{name} deleted: {size_text(cache.remove(repo, file))} free again")


@app.command("info")
def info(name: Name, json: Json = False) -> None:
    """What a model is and needs: parameters, layers, quantization mix, context, tokenizer, memory. Loads no weights."""
    from specrun.catalog import info, resolve

    known = info.facts(resolve.locate(name))
    if json:
        output.write_json(known)
        return
    for word, text in info.lines(known):
        output.write(f"{word:<14} {text}\n")


@app.command("pairs")
def list_pairs(
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="All that are here by default.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Which drafts fit a target, of the catalog and of this machine, and why the others do not."""
    from dataclasses import asdict

    from specrun.catalog import fitting, resolve

    targets = [resolve.locate(target)] if target else list(fitting.on_this_machine())
    pairs = [pair for model in targets for pair in fitting.pairs_of(model)]
    if json:
        output.write_json([asdict(pair) | {"fits": pair.difference is None} for pair in pairs])
        return
    if not pairs:
        output.note(
            f"no draft for {target} is known"
            if target
            else "no models here yet; name a TARGET of `specrun models list`"
        )
        return
    output.print_table(_pair_table(pairs))


@app.command("check")
def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Aliases; all by default.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Compare the catalog with the hub: repository, files, size, licence, architecture, context. Needs the network."""
    from specrun.catalog import checking, entries

    catalog = entries.catalog()
    for name in names or []:
        if name not in catalog:
            raise UsageError(f"{name} is no alias of the catalog; `specrun models list` shows them")
    results = []
    with output.progress() as show:
        for alias in names or catalog:
            show(f"{alias} ...")
            results.append(checking.check(catalog[alias]))
    if json:
        output.write_json([result.as_json() for result in results])
    else:
        for result in results:
            output.write(f"{result.alias:<18} {result.text}\n")
    if wrong := [result.alias for result in results if result.differences]:
        raise SpecrunError(
            f"{len(wrong)} of {len(results)} differ from the hub; correct them in models.toml "
            f"($SPECRUN_CONFIG_DIR/models.toml overrides what ships)"
        )


def _on_hub(name: str) -> tuple[str, HubName, Path | None]:
    from specrun.catalog.resolve import locate

    model = locate(name)
    if model.hub is None:
        raise UsageError(f"{name} is a path; give an alias, org/repo:QUANT or org/repo/file.gguf")
    return name, model.hub, model.path


def _path(name: str) -> Path:
    from specrun.catalog import resolve

    model = resolve.locate(name)
    if model.path is None:
        assert model.hub
        raise resolve.missing_error([model.hub], has_pull=False)
    if not model.path.exists():
        raise MissingModelError(f"{model.path}: no such file")
    return model.path


def _pulled(name: str, remote: dict[str, RemoteModel]) -> dict[str, Any]:
    from specrun.catalog.resolve import locate

    model = locate(name)
    facts: dict[str, Any] = {"name": name, "path": str(model.path) if model.path else None}
    if name in remote:
        found = remote[name]
        facts |= {"repo": found.repo, "commit": found.commit, "bytes": found.bytes, "licence": found.licence}
        facts["files"] = [file.name for file in found.files]
    return facts


def _pair_table(pairs: list[Pair]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in ("target", "draft", "fits", ""):
        table.add_column(head)
    for pair in sorted(pairs, key=lambda pair: pair.difference is not None):
        fits = "no" if pair.difference else "yes" if pair.checked else "yes, by the catalog"
        notes = [pair.difference] if pair.difference else list(pair.warnings)
        notes += ["not on this machine"] if not pair.cached else []
        table.add_row(pair.target, pair.draft + (" (recommended)" if pair.recommended else ""), fits, "; ".join(notes))
    return table


def _facts(entry: Entry, where: Path | None) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(entry) | {"cached": where is not None, "path": str(where) if where else None}


def _first(names: list[str]) -> str:
    """The first draft; `info` and `pairs` show all."""
    return f"{names[0]} +{len(names) - 1}" if len(names) > 1 else "".join(names)


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in ("model", "quant", "size", "licence", "draft", "here"):
        table.add_column(head, justify="right" if head == "size" else "left", no_wrap=head in ("model", "size"))
    for row in rows:
        name = row["alias"] or f"{row['repo']}/{row['file']}"
        size = size_text(row["bytes"]) if row["bytes"] else ""
        unsure = "" if row["verified"] or row["cached"] else " ?"
        table.add_row(
            name + unsure,
            row["quantization"],
            size,
            row["licence"],
            _first(row["drafts"]),
            "yes" if row["cached"] else "",
        )
    return table

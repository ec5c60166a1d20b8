"""`specrun models`: lists, fetches, describes and removes models, and makes drafts from the target's own file."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specrun.cli.command import Command, Group
from specrun.display_text import one_line, size_text
from specrun.errors import INTERRUPTED_EXIT_CODE, MissingModelError, ModelFileError, UsageError, disk_errors
from specrun.interrupts import InterruptFlag
from specrun.options.expand import argument, complete_fetchable, complete_here, complete_targets, expanded, flag, option
from specrun.views import output

if TYPE_CHECKING:
    from specrun.catalog.hub import HubName
    from specrun.catalog.hub.client import RemoteModel
    from specrun.catalog.made import Kind

app = typer.Typer(name="models", cls=Group, invoke_without_command=True)
command = partial(app.command, cls=Command)

_names = partial(argument, "NAME...", "Aliases, ALIAS:QUANT, org/repo:QUANT or org/repo/file.gguf.")
FetchedNames = Annotated[list[str], _names(complete_fetchable)]
LocalNames = Annotated[list[str], _names(complete_here)]
Name = Annotated[str, argument("NAME", "Alias, ALIAS:QUANT, org/repo:QUANT, or a path.", complete_here)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_PAIRS_OF_ONE = "`specrun models pairs TARGET` lists the drafts of a model of `specrun models list`, here or not"


@app.callback()
def models(context: typer.Context) -> None:
    """List, pull, check and remove models."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@command("list")
def list_models(
    here: Annotated[
        bool, typer.Option("--here", help="Only models on this machine, including those that other programs keep.")
    ] = False,
    fit: Annotated[bool, typer.Option("--fits", help="Only models that fit the memory that is free.")] = False,
    json: Json = False,
) -> None:
    """List models: those on this machine, and the catalog, with what drafts, what fits here, and roughly how fast.

    Models that Ollama, LM Studio and llama.cpp keep are used where they are, by the names shown here. `fits` says where
    placement would put a model with its draft at a context of 4,096 tokens: vram, partly (in VRAM), ram, streamed (from
    disk in every pass), or no. Tokens per second are an estimate of plain decoding. Nothing is downloaded.
    """
    from specrun.catalog import entries
    from specrun.catalog.here import local_models
    from specrun.loading.local_fit import IN_MEMORY, LocalFits
    from specrun.views.models_table import models_table, row_of

    catalog = entries.catalog()
    fits = LocalFits.now(catalog)
    with output.progress() as show:
        show("reading the models on this machine ...")
        local = local_models()
        by_alias = {model.entry.alias: model for model in reversed(local) if model.entry}
        rows = [row_of(None, model, fits) for model in local if not model.entry]
    rows += [row_of(entry, by_alias.get(entry.alias), fits) for entry in catalog.values()]
    rows = [row for row in rows if (row["here"] or not here) and (row["fits"] in IN_MEMORY or not fit)]
    if json:
        output.write_json(rows)
        return
    if not rows:
        which = "no model fits the memory that is free" if fit else "no models on this machine yet"
        output.note(f"{which}; `specrun pull NAME` fetches one of `specrun models list`")
        return
    output.print_table(models_table(rows))
    output.note(fits.explanation)
    if not all(row["verified"] or row["here"] for row in rows):
        output.note("?: not verified; `specrun pull NAME --dry-run` asks the hub")


def pull(
    names: FetchedNames,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be fetched.")] = False,
    json: Json = False,
) -> None:
    """Fetch models into the Hugging Face cache. An interrupted download continues where it stopped.

    Sizes and licences are shown first. On a terminal the command asks before fetching.
    """
    from specrun.cli import opening

    missing = []
    for name in names:
        model, path = _on_hub(name)
        if path is None:
            missing.append(model)
        else:
            output.note(f"{name} is already here")
    fetcher = opening.AskingFetcher(pull=yes or not opening.can_ask())
    remote = fetcher.look_up(missing)
    if remote and not fetcher.fetch(remote, dry_run) and not dry_run:
        raise MissingModelError(f"{' and '.join(model.name for model in remote)} not fetched, because you declined")
    if json:
        output.write_json([_pulled(name, remote) for name in names])
    elif not dry_run:
        for name in names:
            output.write(f"{_path(name)}\n")


command("pull", hidden=True)(pull)  # as `specrun pull`


@dataclass(frozen=True)
class DraftOptions:
    """How the draft is made, as the user gave it."""

    types: str | None = option(
        None, "LIST", "Quantizations to try; `same` keeps the target's own. By default q2_k,q3_k_s,q4_0."
    )
    keep_layers: str | None = option(None, "LIST", "Shares of the target's layers to keep. By default 1,0.75,0.5.")
    file: Path | None = option(None, "FILE", "File of the draft. By default in the data folder.", "--output", "-o")
    forget: bool = flag("Delete the draft that was made from the target.")
    json: bool = flag("One JSON object instead of the table.")


@command("make-draft")
@expanded
def make_draft(
    target: Annotated[
        str | None,
        argument("TARGET", "Alias, org/repo:QUANT or GGUF file. By default the embedded target.", complete_here),
    ] = None,
    *,
    how: DraftOptions,
) -> int:
    """Make a draft from the target's own file, with fewer bits per weight and fewer layers. Downloads nothing.

    Several drafts are made with llama.cpp's quantizer and compared with the target. The draft with the highest expected
    speed is kept. From then on it drafts for this target in every command without --draft.

    Columns of the table: agrees: how often draft and target have the same likeliest token. overlap: how much of the
    probabilities at temperature 0.8 both share. of target: time of a draft pass as a share of a target pass. best
    tree: the fastest token tree with it. expected: its estimated speed, compared with plain decoding.
    """
    from specrun.catalog import embedded, resolve

    path = embedded.TARGET if target is None else resolve.local_path(target)
    if not how.forget:
        return _make(path, target, how)
    if how.types or how.keep_layers or how.file or how.json:
        raise UsageError("--forget takes no other option")
    if not path.exists():
        raise ModelFileError(f"{path}: no such file; give the target whose draft to forget")
    if not forget_made(path):
        raise UsageError(f"no draft was made from {path.name}; `specrun models make-draft` makes one")
    return 0


@command("path")
def path(name: Name) -> None:
    """Print the path of a model on this machine: its file or its first shard."""
    output.write(f"{_path(name)}\n")


@command("rm")
def remove(names: LocalNames, yes: Yes = False) -> None:
    """Delete models from the Hugging Face cache, which other programs share, and the drafts and heads made of them."""
    from specrun.catalog import cache, made
    from specrun.cli import opening

    cached = []
    for name in names:
        model, path = _on_hub(name)
        if path is None:
            raise MissingModelError(f"{name} is not on this machine; `specrun models list --here` shows what is")
        if not path.is_relative_to(cache.folder(model.repo)):
            raise UsageError(f"{name} is kept by another program ({path}); delete it there")
        cached.append((name, model.repo, path))
    if not yes:
        if not opening.can_ask():
            raise UsageError("rm cannot ask here whether to delete; add --yes to delete without asking")
        has_drafts = (made.find(path) or made.find(path, "head") for *_, path in cached)
        also = " and what was made of it" if any(has_drafts) else ""
        if not opening.confirmed(f"Delete {', '.join(names)}{also}?", default=False):
            return
    for name, repo, path in cached:
        forget_made(path)
        forget_made(path, "head")
        freed = cache.remove(repo, path)
        output.note(f"{name} deleted: {size_text(freed)} free again")


@command("info")
def info(name: Name, json: Json = False) -> None:
    """Describe a model: parameters, layers, quantization mix, context, tokenizer, needed memory. Loads no weights."""
    from specrun.catalog import info, resolve

    facts = info.facts(resolve.locate(name))
    if json:
        output.write_json(facts)
    else:
        output.print_table(output.facts((label, one_line(text)) for label, text in info.lines(facts)))


@command("pairs")
def list_pairs(
    target: Annotated[str | None, argument("TARGET", "By default all models that are here.", complete_targets)] = None,
    json: Json = False,
) -> None:
    """List which drafts of the catalog and of this machine fit a target, and why the others do not.

    A small model with another tokenizer can draft, too. Of the text, what both tokenizers share is what it can guess.
    """
    from specrun.catalog import info, resolve
    from specrun.catalog.entries import best_companion
    from specrun.decoding import calibration_texts

    targets = [resolve.locate(target)] if target else list(info.on_this_machine())
    text = calibration_texts.together("calibrate", "validate")
    pairs = [pair for model in targets for pair in info.pairs_of(model, text)]
    if json:
        output.write_json([asdict(pair) | {"fits": pair.difference is None} for pair in pairs])
        return
    for model in targets:
        entry = model.hub.entry if model.hub else None
        if entry and (best := best_companion(entry.companions, entry.architecture)):
            output.note(f"best known for {entry.alias}: {best}")
    if not any(pair.difference is None for pair in pairs):
        way = resolve.way_to_draft(target) if target else _PAIRS_OF_ONE
        one = f"none of the drafts of the catalog and of `specrun models list` fits {target}"
        none = "no model here drafts for another" if targets else "no models on this machine yet"
        output.note("; ".join(filter(None, (one if target else none, way))))
    if not pairs:
        return
    table = output.FittingTable("target", "draft", "fits", "")
    for pair in sorted(pairs, key=lambda pair: (pair.difference is not None, pair.share is not None)):
        fits = "no" if pair.difference else "yes" if pair.checked else "yes, by the catalog"
        notes = [pair.difference] if pair.difference else list(pair.warnings)
        notes += ["not on this machine"] if not pair.cached else []
        table.add_row(pair.target, pair.draft + (" (recommended)" if pair.recommended else ""), fits, "; ".join(notes))
    output.print_table(table)


def _on_hub(name: str) -> tuple[HubName, Path | None]:
    """What a name means on the hub, and the path of the cached model or None. Raises UsageError for a path."""
    from specrun.catalog import embedded, here
    from specrun.catalog.resolve import locate

    model = locate(name)
    if model.hub is None:
        if embedded.is_meant(name):
            raise UsageError(f"{name} is part of specrun itself: there is nothing to fetch or to delete")
        if here.is_of_ollama(name):
            raise UsageError(f"{name} is kept by Ollama; `ollama pull` and `ollama rm` fetch and delete its models")
        raise UsageError(f"{name} is a path; give an alias, org/repo:QUANT or org/repo/file.gguf")
    return model.hub, model.path


def _path(name: str) -> Path:
    from specrun.catalog import resolve

    path = resolve.local_path(name)
    if not path.exists():
        raise MissingModelError(f"{path}: no such file")
    return path


def _pulled(name: str, remote: Iterable[RemoteModel]) -> dict[str, Any]:
    from specrun.catalog.resolve import locate

    model = locate(name)
    facts: dict[str, Any] = {"name": name, "path": str(model.path) if model.path else None}
    if pulled := next((one for one in remote if one.name == model.name), None):
        facts |= {key: getattr(pulled, key) for key in ("repo", "commit", "bytes", "licence")}
        facts["files"] = [file.name for file in pulled.files]
    return facts


def forget_made(target: Path, kind: Kind = "draft") -> bool:
    """Delete the draft that was made of `target`, or the head, also an unfinished one, and print a note. Returns False
    if there is none.
    """
    from specrun.catalog import made

    with disk_errors("deleted"):
        was_unfinished = kind == "head" and made.forget_unfinished_head(target)
        forgotten = made.forget(target, kind)
        compared = made.find_fastest(target)
        if forgotten and compared and compared.path == forgotten[0].path:
            made.forget_fastest(target)
    if was_unfinished:
        output.note("the texts and states of an unfinished head were deleted")
    if forgotten:
        draft, freed = forgotten
        output.note(f"{draft.path} " + (f"deleted: {size_text(freed)} free again" if freed else "is no longer used"))
    return was_unfinished or forgotten is not None


def _make(path: Path, name: str | None, how: DraftOptions) -> int:
    """Make the draft and print the result. Returns the exit code. name: what the user calls the target, if anything."""
    from specrun.catalog import embedded, resolve
    from specrun.long_run import Run
    from specrun.making import make
    from specrun.views.models_table import made_drafts_table

    type_names = make.parse_types(how.types) if how.types is not None else None
    shares = make.parse_shares(how.keep_layers) if how.keep_layers is not None else None
    usual: Path | None = embedded.DRAFT  # what drafts if none was made
    usual_name = "the embedded draft"
    if name is not None and not embedded.is_meant(name):
        draft = resolve.choose(name, None, may_fetch=False).draft
        usual, usual_name = (draft.path, draft.name) if draft else (None, "")
    # A KeyboardInterrupt raised while llama.cpp calls back to log would be lost; the flag is checked between passes.
    with output.progress() as progress, InterruptFlag(output.stopping) as interrupted:
        try:
            run = Run(progress, output.note, interrupted)
            result = make.make_draft(path, type_names, shares, how.file, usual, run)
        except KeyboardInterrupt:
            output.note("interrupted; no draft was made, and nothing else has changed")
            return INTERRUPTED_EXIT_CODE
    if how.json:
        output.write_json(result.as_json())
    else:
        output.print_table(made_drafts_table(result, usual_name))
    assert result.best.quality
    best = result.best.quality.speedup
    if result.remark:
        output.note(result.remark)
    if best <= 1:
        output.note(f"none is expected to beat plain decoding (the best: {best:.2f} times as fast)")
    if result.rival and result.rival.speedup > best:
        better = f"{usual_name} is expected to be faster ({result.rival.speedup:.2f} times)"
        output.note(f"{better}; --forget goes back to it")
    output.note(f"kept as {result.path}; it drafts from now on unless --draft is given (--forget ends that)")
    target = f" --target {shlex.quote(name)}" if name else ""
    output.note(f"`specrun tune{target}` measures the real speed and finds the best plan")
    return 0

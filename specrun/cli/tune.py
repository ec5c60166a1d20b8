"""`specrun tune`: measure this machine, choose the plan that is fastest on it, and remember it."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specrun.cli import output
from specrun.errors import INTERRUPTED_EXIT_CODE, UsageError
from specrun.interrupts import InterruptFlag
from specrun.options.expand import expanded
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.speculation_options import SpeculationOptions

if TYPE_CHECKING:
    from specrun.engine.run_options import RunOptions
    from specrun.profiles.profile import Profile
    from specrun.tuning.effort import Effort

_PROFILES = "Profiles"


@expanded
def tune(
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute, and rougher.")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="About 20 minutes, and finer.")] = False,
    temp: Annotated[
        str, typer.Option("--temp", metavar="LIST", help="Temperatures to tune for; 0 is greedy.")
    ] = "0.8,0",
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Your own prompts to tune on: JSONL of {"prompt"}.', show_default=False),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the prompts as they are.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it (.png, .svg).", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the report.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Show the profile of this pair again.", rich_help_panel=_PROFILES)
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List all profiles.", rich_help_panel=_PROFILES)] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete the profile of this pair.", rich_help_panel=_PROFILES)
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Copy the profile of this pair.", show_default=False, rich_help_panel=_PROFILES
        ),
    ] = None,
    import_: Annotated[
        Path | None,
        typer.Option(
            "--import", metavar="FILE", help="Add a profile from a file.", show_default=False, rich_help_panel=_PROFILES
        ),
    ] = None,
    *,
    models: ModelOptions,
    machine: MachineOptions,
) -> int:
    """Measure this machine, choose the plan that is fastest on it, and remember it.

    Times passes of both models, counts what is accepted on texts of several kinds, predicts every plan, and runs the
    best ones. Every other command follows the profile from then on. A run that is cut short goes on where it was.
    """
    if quick and thorough:
        raise UsageError("--quick and --thorough exclude each other; choose one")
    if sum([show, list_, forget, export is not None, import_ is not None]) > 1:
        raise UsageError("--show, --list, --forget, --export and --import exclude each other; choose one")
    if list_:
        return _list(json)
    if import_:
        return _import(import_)
    if show or forget or export:
        return _use_saved(_options(models, machine), show, forget, export, json, plot)
    temperatures = _temperatures(temp)
    if plot:
        from specrun.views import bench_plot as drawing

        drawing.check(plot)
    effort: Effort = "quick" if quick else "thorough" if thorough else "default"
    return _tune(_options(models, machine), effort, temperatures, prompts, raw, json, plot)


def _options(models: ModelOptions, machine: MachineOptions) -> RunOptions:
    from specrun.cli.pulling import AskingFetcher
    from specrun.engine.resolving import run_options

    return run_options(models, SpeculationOptions(), machine, AskingFetcher(models.pull), output.note)


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        values = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        values = ()
    if not values or not all(0 <= value <= 10 for value in values):
        raise UsageError(f"--temp is a list of temperatures such as 0.8,0; got {text}")
    return values


def _tune(
    options: RunOptions,
    effort: Effort,
    temperatures: tuple[float, ...],
    prompts: Path | None,
    raw: bool,
    json: bool,
    plot: Path | None,
) -> int:
    from specrun.bench import bench_prompts as files
    from specrun.engine.resolving import identity_of
    from specrun.profiles import profile_files as storage
    from specrun.tuning import partial, run

    texts = files.load(prompts) if prompts else None
    storage.check_folder()
    identity = identity_of(options)
    # A Ctrl-C that came while llama.cpp writes its log would be lost, so it waits for the pass to be over.
    with output.progress() as progress, InterruptFlag() as interrupted:
        try:
            found = run.tune(options, identity, effort, temperatures, texts, raw, progress, output.note, interrupted)
        except KeyboardInterrupt:
            output.note("interrupted; what was measured is kept for an hour: the same command goes on from there")
            return INTERRUPTED_EXIT_CODE
    path = storage.save(found)
    partial.forget(found.fingerprint)
    _show(found, json, plot)
    output.note(f"saved as {path}")
    return 0


def _show(result: Profile, json: bool, plot: Path | None) -> None:
    from specrun.views import profile_plot as plots
    from specrun.views import tune_report as report

    if json:
        output.write_json(result.as_json())
    else:
        output.print_table(report.render(result))
    if plot:
        plots.plot(result, plot)


def _use_saved(
    options: RunOptions, show: bool, forget: bool, export: Path | None, json: bool, plot: Path | None
) -> int:
    from specrun.engine.resolving import identity_of
    from specrun.profiles import lookup
    from specrun.profiles import profile_files as storage

    found = lookup.find(identity_of(options))
    if found.profile is None:
        raise UsageError(found.notice or "no profile of this pair on this machine; `specrun tune` makes one")
    if forget:
        output.note(f"deleted {storage.forget(found.profile)}")
    elif export:
        storage.export(found.profile, export)
        output.note(f"wrote {export}")
    elif show:
        _show(found.profile, json, plot)
    return 0


def _list(json: bool) -> int:
    from rich.table import Table

    from specrun.profiles import profile_files as storage
    from specrun.views import tune_report as report

    profiles = [found for _, found in storage.saved()]
    if json:
        output.write(jsonlib.dumps([found.as_json() for found in profiles]) + "\n")
        return 0
    if not profiles:
        output.note("no profiles yet; `specrun tune` makes one")
        return 0
    table = Table(box=None, pad_edge=False)
    for name in ("fingerprint", "created", "target", "draft", "weights", "plan"):
        table.add_column(name)
    for found in profiles:
        plan = report.sentence(found, found.plans[0])
        table.add_row(found.fingerprint, found.created, found.target, found.draft or "none", found.regime, plan)
    output.print_table(table)
    return 0


def _import(path: Path) -> int:
    from specrun.profiles import profile_files as storage

    found = storage.load(path)
    output.note(f"saved as {storage.save(found)}")
    return 0

"""`specrun tune`: measure this machine, choose the fastest plan on it, and save both as a profile."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specrun.errors import INTERRUPTED_EXIT_CODE, ProfileError, UsageError
from specrun.interrupts import InterruptFlag
from specrun.options.expand import expanded
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.views import output

if TYPE_CHECKING:
    from specrun.engine.run_options import RunOptions
    from specrun.profiles.profile import Profile
    from specrun.tuning.tune_pair import TunedDraft
    from specrun.tuning.tuner import EffortName

_NO_PROFILE = "no profile of this pair on this machine; `specrun tune` makes one"


def _option(text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, show_default=metavar is None, rich_help_panel="Profiles")


@dataclass(frozen=True)
class ProfileOptions:
    """What to do with saved profiles instead of measuring, as the user gave it."""

    show: Annotated[bool, _option("Show the profile of this pair again; --draft a,b shows several.", "--show")] = False
    list_: Annotated[bool, _option("List all profiles.", "--list")] = False
    forget: Annotated[
        bool, _option("Delete the profile of this pair, and what earlier runs have learned.", "--forget")
    ] = False
    export: Annotated[Path | None, _option("Copy the profile of this pair.", metavar="FILE")] = None
    import_: Annotated[Path | None, _option("Add a profile from a file.", "--import", metavar="FILE")] = None


@expanded
def tune(
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, in under a minute.")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="Measure more, in about 20 minutes.")] = False,
    temp: Annotated[
        str, typer.Option("--temp", metavar="LIST", help="Temperatures to tune for; 0 is greedy.")
    ] = "0.8,0",
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Your own prompts to tune on: JSONL of {"prompt"}.', show_default=False),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the prompts as they are.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the profile (.png, .svg).", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the report.")] = False,
    *,
    profiles: ProfileOptions,
    models: ModelOptions,
    machine: MachineOptions,
) -> int:
    """Measure this machine, choose the fastest plan on it, and save it.

    Times passes of both models, counts accepted tokens on texts of several kinds, predicts the speed of every plan, and
    runs the best ones. Every other command then follows the saved profile. A run that was interrupted less than an hour
    ago is continued.
    """
    if quick and thorough:
        raise UsageError("--quick and --thorough exclude each other; choose one")
    if sum(bool(value) for value in astuple(profiles)) > 1:
        raise UsageError("--show, --list, --forget, --export and --import exclude each other; choose one")
    if profiles.list_:
        return _list(json)
    if profiles.import_:
        from specrun.profiles import profile_files

        output.note(f"saved as {profile_files.save(profile_files.load(profiles.import_))}")
        return 0
    if profiles.show or profiles.forget or profiles.export:
        pairs = [(pair.draft, _options(pair, machine)) for pair in _listed(models)]
        return _use_saved(pairs, profiles, json, plot)
    temperatures = _temperatures(temp)
    if plot:
        from specrun.views import plot_file

        plot_file.check(plot)
    effort: EffortName = "quick" if quick else "thorough" if thorough else "default"
    drafts = [(pair.draft, _options(pair, machine)) for pair in _compared(models)]
    return _tune(drafts, effort, temperatures, prompts, raw, json, plot)


def _compared(models: ModelOptions) -> Sequence[ModelOptions]:
    """The pairs to compare: the target with each draft of a list, or with each that is here if there are several."""
    from specrun.catalog import embedded
    from specrun.catalog.local_pair import drafts_here
    from specrun.catalog.resolve import NO_DRAFT, OWN_HEAD

    here = drafts_here(models.target) if models.draft is None else []
    if here == [OWN_HEAD]:
        here.insert(0, NO_DRAFT)  # the first is kept unless another draft is clearly faster
    if len(here) < 2:
        return _listed(models)
    # The embedded target has to be named where its draft is.
    return [replace(models, target=models.target or str(embedded.TARGET), draft=name) for name in here]


def _listed(models: ModelOptions) -> Sequence[ModelOptions]:
    """The target with each draft of a comma-separated list, or with its usual one."""
    if models.draft is None or Path(models.draft).exists():
        return [models]
    names = [name.strip() for name in models.draft.split(",")]
    if not all(names):
        raise UsageError(f"--draft is a name, or a list of names to compare such as a,b; got {models.draft!r}")
    return [replace(models, draft=name) for name in dict.fromkeys(names)]


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
    drafts: Sequence[tuple[str | None, RunOptions]],
    effort: EffortName,
    temperatures: tuple[float, ...],
    prompts: Path | None,
    raw: bool,
    json: bool,
    plot: Path | None,
) -> int:
    from specrun.bench import bench_prompts
    from specrun.cli.opening import note_unusable_gpu
    from specrun.engine.calibration_texts import TuningText
    from specrun.long_run import Run
    from specrun.profiles import profile_files
    from specrun.tuning import unfinished
    from specrun.tuning.tune_pair import OtherProcessNeededError, fastest_of, tune_drafts
    from specrun.views.tune_report import placement_text

    own = [TuningText(prompt.kind, prompt.text) for prompt in bench_prompts.load(prompts)] if prompts else None
    profile_files.check_folder()
    note_unusable_gpu()
    # llama.cpp loses a Ctrl-C that comes while it writes its log, so the flag is checked between passes.
    try:
        with output.progress() as display, InterruptFlag() as interrupted:
            tuned = tune_drafts(drafts, effort, temperatures, own, raw, Run(display, output.note, interrupted))
    except KeyboardInterrupt:
        output.note("interrupted; what was measured is kept for an hour: the same command goes on from there")
        return INTERRUPTED_EXIT_CODE
    except OtherProcessNeededError as needed:
        if interrupted():
            return INTERRUPTED_EXIT_CODE
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **needed.variables})
    for one in tuned:
        profile_files.save(replace(one.profile, picture=placement_text(one.placement)))
        unfinished.delete(one.profile.fingerprint)
    best = fastest_of(tuned)
    if len(tuned) > 1:
        _keep_fastest(tuned, best)
    path = profile_files.path_of(best.profile.fingerprint)
    _show(profile_files.load(path), json, plot)
    output.note(f"saved as {path}")
    return 0


def _keep_fastest(tuned: Sequence[TunedDraft], best: TunedDraft) -> None:
    """Say how fast the target is with each draft, and keep the fastest draft for later runs."""
    from specrun.catalog import made

    rates = ", ".join(f"{one.rate:.2f} with {one.name}" for one in tuned)
    try:
        made.keep_fastest(best.options.target, made.FastestDraft(best.name, best.options.draft))
    except OSError as error:
        raise ProfileError(f"{error.filename} cannot be written: {error.strerror}") from error
    output.note(f"tokens/s that can be expected: {rates}; from now on {best.name} drafts unless --draft names another")


def _show(profile: Profile, json: bool, plot: Path | None) -> None:
    from specrun.profiles.codec import profile_to_json
    from specrun.views import profile_plot, tune_report

    if json:
        output.write_json(profile_to_json(profile))
    else:
        output.print_table(tune_report.render(profile))
    if plot:
        profile_plot.plot(profile, plot)


def _use_saved(
    pairs: Sequence[tuple[str | None, RunOptions]], options: ProfileOptions, json: bool, plot: Path | None
) -> int:
    """Show, delete or export the profiles of the pairs, each given with the name of its draft (None for the usual)."""
    from specrun.engine.resolving import identity_of
    from specrun.profiles import lookup, profile_files
    from specrun.profiles.codec import profile_to_json

    if len(pairs) > 1 and (options.export or plot):
        raise UsageError("--export and --plot write the profile of one pair; name one --draft")
    results = [(name, lookup.find_any(identity_of(pair))) for name, pair in pairs]
    found = [result.profile for _, result in results if result.profile]
    if not found:
        raise UsageError(results[0][1].notice or _NO_PROFILE)
    for name, result in results:
        if result.profile is None:
            output.note(f"{name}: {result.notice or _NO_PROFILE}")
    if options.forget:
        for profile in found:
            output.note(f"deleted {profile_files.forget(profile)}")
    elif options.export:
        profile_files.export(found[0], options.export)
        output.note(f"wrote {options.export}")
    elif json and len(pairs) > 1:
        output.write_json([profile_to_json(profile) for profile in found])
    else:
        for i, profile in enumerate(found):
            if i:
                output.write("\n")
            _show(profile, json, plot)
    return 0


def _list(json: bool) -> int:
    from rich.table import Table

    from specrun.profiles import profile_files
    from specrun.profiles.codec import profile_to_json
    from specrun.views import tune_report

    profiles = list(profile_files.saved(with_learned=True))
    if json:
        output.write_json([profile_to_json(profile) for profile in profiles])
        return 0
    if not profiles:
        output.note("no profiles yet; `specrun tune` makes one")
        return 0
    head = ("fingerprint", "created", "origin", "target", "draft", "weights", "plan")
    table = Table(*head, box=None, pad_edge=False)
    for p in profiles:
        plan = tune_report.sentence(p, p.plans[0])
        table.add_row(p.fingerprint, p.created, p.origin, p.target, p.draft or "none", p.regime, plan)
    output.print_table(table)
    return 0

"""`specrun tune`: measure this machine and a pair on it, and save that as a profile."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specrun.display_text import duration_text
from specrun.errors import INTERRUPTED_EXIT_CODE, ProfileError, SpecrunError, UsageError, disk_errors
from specrun.interrupts import InterruptFlag
from specrun.options.expand import expanded, flag, option
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import raw_option, temperatures_in
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import output

if TYPE_CHECKING:
    from specrun.loading.run_options import RunOptions
    from specrun.profiles.profile import Profile
    from specrun.tuning.tuner import EffortName

_NO_PROFILE = "no profile of this pair on this machine; `specrun tune` makes one"
_option = partial(option, rich_help_panel="Profiles")
_flag = partial(flag, rich_help_panel="Profiles")


@dataclass(frozen=True)
class TuneOptions:
    """What is measured, and how a profile is shown, as the user gave it."""

    quick: bool = flag("Measure less, in under a minute.")
    thorough: bool = flag("Measure more, in about 15 minutes.")
    temp: str = option("0.8,0", "LIST", "Temperatures to tune for; 0 is greedy.")
    prompts: Path | None = option(None, "FILE", 'Your own prompts to tune on: JSONL of {"prompt"}.')
    raw: bool = raw_option()
    json: bool = flag("One JSON object instead of the report.")


@dataclass(frozen=True)
class ProfileOptions:
    """What to do with saved profiles instead of measuring, as the user gave it."""

    show: bool = _flag("Show the profile of this pair again; --draft a,b shows several.")
    list_: bool = _flag("List all profiles.")
    forget: bool = _flag("Delete the profile of this pair, and what earlier runs have learned.")
    export: Path | None = _option(None, "FILE", "Copy the profile of this pair.")
    import_: Path | None = _option(None, "FILE", "Add a profile from a file.")


@expanded
def tune(*, models: ModelOptions, what: TuneOptions, profiles: ProfileOptions, machine: MachineOptions) -> int:
    """Measure this machine, and save what every other command then follows.

    Tries llama.cpp's settings, times passes of both models, and writes texts of several kinds to learn how many drafted
    tokens are accepted. Every other command follows the saved profile. A run that was interrupted less than an hour ago
    is continued.

        specrun tune --target qwen-14b
        specrun tune --target qwen-14b --show
    """
    if what.quick and what.thorough:
        raise UsageError("--quick and --thorough exclude each other; choose one")
    if sum(bool(value) for value in astuple(profiles)) > 1:
        raise UsageError("--show, --list, --forget, --export and --import exclude each other; choose one")
    if profiles.list_:
        _list(what.json)
    elif profiles.import_:
        from specrun.profiles import profile_files

        output.note(f"saved as {profile_files.save(profile_files.load(profiles.import_))}")
    elif profiles.show or profiles.forget or profiles.export:
        _use_saved(_run_options(_listed(models), machine), profiles, what)
    else:
        return _tune(_run_options(_compared(models), machine), what, temperatures_in(what.temp))
    return 0


def _compared(models: ModelOptions) -> Sequence[ModelOptions]:
    """The pairs to compare: the target with each draft of a list, or with each that is here if there are several."""
    from specrun.catalog import embedded
    from specrun.catalog.resolve import drafts_here

    here = drafts_here(models.target) if models.draft is None else []
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


def _run_options(pairs: Sequence[ModelOptions], machine: MachineOptions) -> list[tuple[str | None, RunOptions]]:
    """The options of a run of each pair, with the name of its draft as the user gave it."""
    from specrun.cli.opening import AskingFetcher
    from specrun.loading.opening import run_options

    further = SpeculationOptions(), machine
    return [(pair.draft, run_options(pair, *further, AskingFetcher(pair.pull), output.note)) for pair in pairs]


def _tune(drafts: Sequence[tuple[str | None, RunOptions]], what: TuneOptions, temperatures: tuple[float, ...]) -> int:
    from specrun.bench import load
    from specrun.catalog import made
    from specrun.cli.doctor import note_unusable_gpu
    from specrun.decoding.calibration_texts import TuningText
    from specrun.long_run import Run
    from specrun.profiles import profile_files
    from specrun.tuning import unfinished
    from specrun.tuning.tune_pair import OtherProcessNeededError, expected_seconds, fastest_of, tune_drafts
    from specrun.views.answer_report import picture

    effort: EffortName = "quick" if what.quick else "thorough" if what.thorough else "default"
    prompts = load(what.prompts) if what.prompts else None
    own = [TuningText(prompt.kind, prompt.text) for prompt in prompts] if prompts else None
    key = unfinished.key_of(effort, temperatures, own, what.raw)
    profile_files.check_folder()
    note_unusable_gpu()
    # llama.cpp loses a Ctrl-C that comes while it writes its log, so the flag is checked between passes.
    try:
        with output.progress() as display, InterruptFlag(output.stopping) as interrupted:
            run = Run(display, output.note, interrupted)
            name, options = drafts[0]
            name = name or (options.draft.name if options.draft else None)
            pair = f"with {name}" if name else "without a draft"
            pairs = f"with each of {len(drafts)} drafts" if len(drafts) > 1 else pair
            output.note(
                f"measuring {options.target.name} {pairs}, about "
                f"{duration_text(len(drafts) * expected_seconds(effort))} after loading: llama.cpp's settings, passes "
                f"of every size{', and texts of several kinds' if options.draft else ''}"
            )
            tuned = tune_drafts(drafts, effort, temperatures, own, what.raw, run)
    except KeyboardInterrupt:
        return _interrupted(drafts, key)
    except OtherProcessNeededError as needed:
        if interrupted():
            return _interrupted(drafts, key)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **needed.variables})
    profiles = [replace(one.profile, picture=picture(one.placement)) for one in tuned]
    paths = [profile_files.save(profile) for profile in profiles]
    for profile in profiles:
        unfinished.forget(profile.identity)
    best = fastest_of(tuned)
    if len(tuned) > 1:
        with disk_errors("written", kind=ProfileError):
            made.keep_fastest(best.options.target, made.FastestDraft(best.name, best.options.draft))
        rates = ", ".join(f"{one.rate:.2f} with {one.name}" for one in tuned)
        kept = f"from now on {best.name} drafts unless --draft names another"
        output.note(f"tokens/s that can be expected: {rates}; {kept}")
    i = next(i for i, one in enumerate(tuned) if one is best)
    _show([profiles[i]], what.json, as_list=False)
    output.note(f"saved as {paths[i]}")
    return 0


def _interrupted(drafts: Sequence[tuple[str | None, RunOptions]], key: str) -> int:
    """Say what the same command would do now, and return the exit code. key: of the run, see `unfinished.key_of`."""
    from specrun.loading.run_options import identity_of
    from specrun.tuning.unfinished import UnfinishedRun

    is_kept = False
    with suppress(SpecrunError):
        is_kept = any(UnfinishedRun(identity_of(options), key).is_resumed for _, options in drafts)
    if is_kept:
        output.note("interrupted; what was measured is kept for an hour: the same command goes on from there")
    else:
        output.note("interrupted; nothing is kept yet, so the same command begins anew")
    return INTERRUPTED_EXIT_CODE


def _show(profiles: Sequence[Profile], as_json: bool, as_list: bool) -> None:
    """Print whole reports, or JSON. as_list: whether that is a list."""
    from specrun.profiles.codec import profile_to_json
    from specrun.views import measurements

    if as_json:
        objects = [profile_to_json(profile) for profile in profiles]
        output.write_json(objects if as_list else objects[0])
        return
    for i, profile in enumerate(profiles):
        if i:
            output.write("\n")
        output.print_table(measurements.render(profile))


def _use_saved(pairs: Sequence[tuple[str | None, RunOptions]], options: ProfileOptions, what: TuneOptions) -> None:
    """Show, delete or export the profiles of the pairs, each given with the name of its draft (None for the usual)."""
    from specrun.loading import outdated
    from specrun.loading.run_options import identity_of
    from specrun.profiles import profile_files

    if len(pairs) > 1 and options.export:
        raise UsageError("--export writes the profile of one pair; name one --draft")
    found: list[Profile] = []
    lacking: dict[str | None, str] = {}
    for name, pair in pairs:
        identity, said = identity_of(pair), list[str]()
        known = profile_files.all_of(identity, said.append)
        found += known if options.forget else known[:1]
        if not known:
            lacking[name] = "; ".join(said) or outdated.why_outdated(identity, with_learned=True) or _NO_PROFILE
        elif known[0].identity != identity and not options.forget:
            this = f"{name}: this" if len(pairs) > 1 else "this"
            how = "another number of threads (--threads, or fewer while other programs held cores)"
            output.note(f"{this} was learned with {how}")
    if not found:
        raise UsageError(next(iter(lacking.values())))
    for name, why in lacking.items():
        output.note(f"{name}: {why}")
    if options.forget:
        for profile in found:
            output.note(f"deleted {profile_files.forget(profile)}")
    elif options.export:
        profile_files.export(found[0], options.export)
        output.note(f"wrote {options.export}")
    else:
        _show(found, what.json, as_list=len(pairs) > 1)


def _list(json: bool) -> None:
    from specrun.profiles import profile_files
    from specrun.views import measurements

    profiles = profile_files.saved(with_learned=True)
    if json:
        _show(profiles, as_json=True, as_list=True)
    elif not profiles:
        output.note("no profiles yet; `specrun tune` makes one")
    else:
        output.print_table(measurements.profiles_table(profiles))

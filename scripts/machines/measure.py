"""What plain decoding, fixed plans, first runs, second runs and tuned runs write a second on a simulated machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from machines import pairs
from machines.simulated import STEP_MS, simulated
from machines.tables import MACHINES, Machine
from specrun.catalog import embedded
from specrun.decoding.request import make_request
from specrun.decoding.statistics import Statistics
from specrun.llama_settings import LlamaSettings
from specrun.loading.learning import Learner
from specrun.loading.model import Model
from specrun.loading.resolving import identity_of, with_profile
from specrun.loading.run_options import RunOptions
from specrun.long_run import Run
from specrun.options.sampling_options import SamplingOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.profiles import profile_files
from specrun.profiles.profile import Profile
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.tuning.tune_pair import tune_pair
from specrun.tuning.tuner import EffortName

N_TOKENS = 256
# Fixed plans of SpecExec and chains; the best of them on a text is known afterwards only.
GRID: tuple[Plan, ...] = (
    OFF.plan(),
    *(CHAIN.plan(depth=depth) for depth in (1, 2, 3, 4, 6, 8, 16)),
    *(
        SPECEXEC.plan(budget, depth, width)
        for budget, depth, width in (
            (4, 2, 2), (8, 4, 4), (16, 6, 4), (16, 12, 4), (32, 8, 8), (32, 16, 8), (64, 12, 16), (64, 24, 16),
            (128, 16, 32), (128, 24, 16), (256, 16, 32), (256, 24, 32), (512, 16, 64), (512, 32, 32),
        )
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Tokens a second of one text on one machine, after the prompt was read."""

    machine: str
    agreement: int
    temperature: float
    text: str
    plain: float
    first: float  # `auto` without a profile
    second: float  # a run that begins with what the first one learned
    tuned: float | None  # `auto` with a profile of `specrun tune`; None, as the forecast, without one
    best: float  # the best fixed plan of the grid
    best_plan: str
    forecast: float | None  # what the profile expects of `auto` at this temperature, over all texts
    first_plan: str
    tune_passes: float | None  # what `specrun tune` took with these texts, in plain passes


@dataclass(frozen=True)
class WrittenText:
    """The passes of a text by a fixed plan, which are the same on all machines."""

    n_tokens: int
    passes: tuple[tuple[int, int, bool], ...]

    def rate(self, machine: Machine) -> float:
        """Tokens a second on this machine."""
        ms = sum(machine.ms(*one) + (0.0 if one[2] else STEP_MS) for one in self.passes)
        return 1e3 * self.n_tokens / ms


def grid(
    folder: Path, agreement: int, temperature: float, text: str, plans: Sequence[Plan] = GRID
) -> dict[Plan, WrittenText]:
    """The text as each plan of the grid writes it."""
    given = replace(options(folder, agreement), plans=tuple(plans))
    found = {}
    with simulated(MACHINES[0]) as simulation, Model(given) as model:
        for plan in plans:
            write(model, text, temperature, plan, 1)  # the prompt is read
            simulation.passes.clear()
            statistics = write(model, text, temperature, plan, keep=True)
            found[plan] = WrittenText(statistics.completion_tokens, tuple(simulation.passes))
    return found


Grids = dict[tuple[int, float, str], dict[Plan, WrittenText]]


@contextmanager
def data_folder() -> Iterator[None]:
    """A folder of its own for profiles and for what runs learn."""
    with TemporaryDirectory() as folder, patch.dict("os.environ", {"SPECRUN_DATA_DIR": folder}):
        yield


def options(folder: Path, agreement: int) -> RunOptions:
    """What `specrun generate` would run. One thread, so that it disturbs nobody; nothing here depends on real time."""
    draft = pairs.draft(folder, agreement)
    return RunOptions(
        embedded.TARGET,
        draft,
        SpeculationOptions().plans(),
        settings=LlamaSettings(threads=1),
        draft_settings=LlamaSettings(threads=1),
        may_shrink=True,
    )


def write(
    model: Model, text: str, temperature: float, plan: Plan | None = None, n_tokens: int = N_TOKENS, keep: bool = False
) -> Statistics:
    """Write one text; with `auto` unless a plan is given. keep: whether the caches keep what they hold."""
    model.forget(keep)
    request = make_request(SamplingOptions(temp=temperature, max_tokens=n_tokens, seed=1))
    request = replace(request, prompt=model.prompt_tokens(pairs.prompt(text), raw=True), ignore_eos=True)
    completion = model.complete(request, FixedPlan(plan) if plan else None)
    completion.run()
    return completion.statistics


def untuned(folder: Path, agreement: int, temperature: float, text: str, runs: int = 2) -> list[tuple[float, str]]:
    """Rates of runs of which each begins with what the ones before learned, and the plan at the end of each."""
    found = []
    for _ in range(runs):
        given = options(folder, agreement)
        with Model(given, Learner(given, LlamaSettings(threads=1), print)) as model:
            rate = write(model, text, temperature).tokens_per_second
            found.append((rate, str(model.plans.at(temperature))))
    return found


def tuned(
    folder: Path, agreement: int, cells: Sequence[tuple[float, str]], effort: EffortName = "default"
) -> tuple[Profile, dict[tuple[float, str], tuple[float, str]]]:
    """What `specrun tune` measures, and the rate and the plan of `auto` with that profile, by temperature and text."""
    given = options(folder, agreement)
    profile, *_ = tune_pair(given, identity_of(given), effort, (0.8, 0.0), None, True, Run())
    profile_files.save(profile)
    found = {}
    with Model(with_profile(given, SpeculationOptions(), 0.8, print)) as model:
        for temperature, text in cells:
            rate = write(model, text, temperature).tokens_per_second
            found[temperature, text] = rate, str(model.plans.at(temperature))
    return profile, found


def rows(
    folder: Path,
    machine: Machine,
    agreement: int,
    cells: Sequence[tuple[float, str]],
    written: Grids,
    effort: EffortName | None = "default",
) -> Iterator[Row]:
    """A row for each temperature and text. written: the texts as the plans of the grid write them. effort: of
    `specrun tune`; None for no tuned runs.
    """
    foretold, rates_tuned, tune_passes = dict[float, float](), dict[tuple[float, str], float](), None
    if effort:
        with data_folder(), simulated(machine) as simulation:
            profile, found = tuned(folder, agreement, cells, effort)
            foretold = {t: profile.at(t).predicted_tokens_per_second for t, _ in cells}
            rates_tuned = {cell: rate for cell, (rate, _) in found.items()}
            tune_passes = 1e3 * simulation.seconds / machine.ms(1, 64)
    for temperature, text in cells:
        with data_folder(), simulated(machine):
            (first, plan), (second, _) = untuned(folder, agreement, temperature, text)
        rates = {str(fixed): one.rate(machine) for fixed, one in written[agreement, temperature, text].items()}
        best = max(rates, key=lambda name: rates[name])
        yield Row(
            machine.name,
            agreement,
            temperature,
            text,
            plain=rates["off"],
            first=first,
            second=second,
            tuned=rates_tuned.get((temperature, text)),
            best=rates[best],
            best_plan=best,
            forecast=foretold.get(temperature),
            first_plan=plan,
            tune_passes=tune_passes,
        )

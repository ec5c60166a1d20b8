"""What plain decoding, fixed plans, first runs, second runs and tuned runs write a second on a simulated machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

from machines import pairs
from machines.simulated import STEP_MS, simulated
from machines.tables import MACHINES, Machine
from specrun import clock
from specrun.catalog import embedded
from specrun.decoding.completion import Completion
from specrun.decoding.generation import make_request
from specrun.llama_settings import LlamaSettings
from specrun.loading.learning import Learner
from specrun.loading.model import Model
from specrun.loading.opening import profiled
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
    sample: int
    plain: float
    first: float  # `auto` without a profile
    second: float  # a run that begins with what the first one learned
    tuned: float | None  # `auto` with a profile of `specrun tune`; None, as the forecast, without one
    best: float  # the best fixed plan of those that were written
    best_plan: str
    forecast: tuple[float, float] | None  # the range that the profile expects of the ratio to plain decoding
    first_plan: str
    tune_passes: float | None  # what `specrun tune` took, in plain passes


@dataclass(frozen=True)
class WrittenText:
    """The passes of a text by a fixed plan, which are the same on all machines."""

    n_tokens: int
    passes: tuple[tuple[int, int, bool], ...]

    def rate(self, machine: Machine) -> float:
        """Tokens a second on this machine."""
        ms = sum(machine.ms(*one) + (0.0 if one[2] else STEP_MS) for one in self.passes)
        return 1e3 * self.n_tokens / ms


class Cell(NamedTuple):
    """A text. sample: which prompt of its kind, and which seed."""

    temperature: float
    text: str
    sample: int = 0


_STAGES = {"target": "target", "draft": "draft", "in": "bits", "writing": "texts"}


class StageTimes:
    """Seconds of the stages of `specrun tune`, told apart by the first word that it shows."""

    def __init__(self) -> None:
        self.seconds = Counter[str]()
        self._stage, self._since = "settings", clock.now()

    def display(self, text: str) -> None:
        """Of a `Run`. text: what begins now."""
        now = clock.now()
        self.seconds[self._stage] += now - self._since
        self._stage, self._since = _STAGES.get(re.split("[: ]", text)[0], "settings"), now


def grid(folder: Path, agreement: int, cell: Cell, plans: Sequence[Plan] = GRID) -> dict[Plan, WrittenText]:
    """The text as each plan writes it."""
    given = replace(options(folder, agreement), plans=tuple(plans))
    found = {}
    with simulated(MACHINES[0]) as simulation, Model(given) as model:
        for plan in plans:
            write(model, cell, plan, 1)  # the prompt is read
            simulation.passes.clear()
            statistics = write(model, cell, plan, keep=True).statistics
            found[plan] = WrittenText(statistics.completion_tokens, tuple(simulation.passes))
    return found


Grids = dict[tuple[int, Cell], dict[Plan, WrittenText]]


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
    model: Model, cell: Cell, plan: Plan | None = None, n_tokens: int = N_TOKENS, keep: bool = False
) -> Completion:
    """Write one text; with `auto` unless a plan is given. keep: whether the caches keep what they hold."""
    model.forget(keep)
    request = make_request(SamplingOptions(temp=cell.temperature, max_tokens=n_tokens, seed=1 + cell.sample))
    prompt = model.prompt_tokens(pairs.prompt(cell.text, cell.sample), raw=True)
    completion = model.complete(replace(request, prompt=prompt, ignore_eos=True), FixedPlan(plan) if plan else None)
    completion.run()
    return completion


def untuned(folder: Path, agreement: int, cell: Cell, runs: int = 2) -> list[tuple[float, str]]:
    """Rates of runs of which each begins with what the ones before learned, and the plan at the end of each."""
    found = []
    for _ in range(runs):
        given = options(folder, agreement)
        with Model(given, Learner(given, LlamaSettings(threads=1), print)) as model:
            rate = write(model, cell).statistics.tokens_per_second
            found.append((rate, str(model.plans.at(cell.temperature))))
    return found


def tune(folder: Path, agreement: int, effort: EffortName) -> tuple[Profile, Counter[str]]:
    """The profile of `specrun tune`, kept, and the seconds that its stages took."""
    given, times = options(folder, agreement), StageTimes()
    profile, *_ = tune_pair(given, effort, (0.8, 0.0), None, True, Run(times.display))
    times.display("")
    profile_files.save(profile)
    return profile, times.seconds


def write_tuned(folder: Path, agreement: int, cell: Cell, n_tokens: int = N_TOKENS) -> Completion:
    """The text as `auto` writes it with the profile that `tune` has kept."""
    with Model(profiled(options(folder, agreement), SpeculationOptions(), cell.temperature, print)) as model:
        return write(model, cell, n_tokens=n_tokens)


def rows(
    folder: Path,
    machine: Machine,
    agreement: int,
    cells: Sequence[Cell],
    written: Grids,
    effort: EffortName | None = "default",
) -> Iterator[Row]:
    """A row for each text. written: the texts as fixed plans write them, plain decoding among these. effort: of
    `specrun tune`; None for no tuned runs.
    """
    profile, rates_tuned, tune_passes = None, dict[Cell, float](), None
    if effort:
        with data_folder(), simulated(machine):
            profile, seconds = tune(folder, agreement, effort)
            rates_tuned = {c: write_tuned(folder, agreement, c).statistics.tokens_per_second for c in cells}
            tune_passes = 1e3 * seconds.total() / machine.ms(1, 64)
    for cell in cells:
        with data_folder(), simulated(machine):
            (first, plan), (second, _) = untuned(folder, agreement, cell)
        rates = {str(fixed): one.rate(machine) for fixed, one in written[agreement, cell].items()}
        best = max(rates, key=lambda name: rates[name])
        yield Row(
            machine.name,
            agreement,
            *cell,
            plain=rates["off"],
            first=first,
            second=second,
            tuned=rates_tuned.get(cell),
            best=rates[best],
            best_plan=best,
            forecast=profile.at(cell.temperature).ratio_range if profile else None,
            first_plan=plan,
            tune_passes=tune_passes,
        )

"""Opens a model: resolves the options, tries a first pass on a GPU that is new to it, and loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from specrun.catalog.local_pair import Fetcher
from specrun.engine import first_pass
from specrun.engine.default_settings import mapped_if_short, with_defaults
from specrun.engine.expert_room import for_experts
from specrun.engine.learning import Learner
from specrun.engine.model import Model
from specrun.engine.resolving import run_options, with_profile
from specrun.engine.run_options import RunOptions
from specrun.hardware.cpu import usable_cores
from specrun.hardware.other_load import LoadWatch
from specrun.hardware.placement import Placement
from specrun.long_run import unwatched
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.sampling_options import SamplingOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.speculation.method import Plan

Group = TypeVar("Group", ModelOptions, SpeculationOptions, MachineOptions)

_SECONDS_OF_A_LOOK = 0.25  # a shorter look says little, because the system counts processor time in steps of 10 ms


def open_model(
    models: ModelOptions,
    speculation: SpeculationOptions,
    machine: MachineOptions,
    temperature: float,
    fetcher: Fetcher,
    note: Callable[[str], None],
    largest: Plan | None = None,
    progress: Callable[[], AbstractContextManager[Callable[[str], None]]] = unwatched,
    parallel: int = 1,
    is_fixed: bool = False,
    most_ram: int | None = None,
) -> Model:
    """Resolve the options, load the model and return it.

    temperature: of the texts to come, on which the size of trees may depend. is_fixed: whether all of them have it.
    fetcher: downloads missing models.
    note: called with each notice that arises before anything is loaded.
    most_ram: as in `RunOptions`.
    largest: a further plan for which the contexts must have room. parallel: most texts written at the same time.
    progress: gives the display that shows what is being loaded. Nothing is asked or fetched while it is open.

    Raises the errors of `Model`, MissingModelError and HubError.
    """
    asked = replace(run_options(models, speculation, machine, fetcher, note), most_ram=most_ram)
    asked = with_profile(asked, speculation, temperature, note)
    watch = LoadWatch()
    decided = mapped_if_short(asked) if asked.profile else with_defaults(asked)
    options = replace(decided, largest=largest, parallel=parallel)
    options, left_out = for_experts(options, temperature if is_fixed else None)
    if left_out:
        note(left_out)
    learns = speculation.learn and speculation.speculate == "auto" and speculation.method is None
    with progress() as show:
        options, crashes = first_pass.checked(options, show)
        learner = Learner(asked, options.settings, note) if learns and not asked.profile else None
        model = Model(options, learner, show)
    model.notices[:0] = crashes
    model.notices += busy_cores(watch, options, model.placement)
    return model


def load(target: str | Path | None, draft: str | Path | None, options: Mapping[str, Any]) -> Model:
    """What `specrun.load` does."""
    values = {**options, "target": target and str(target), "draft": draft and str(draft)}
    models, speculation = _taken(ModelOptions, values), _taken(SpeculationOptions, values)
    machine = _taken(MachineOptions, values)
    if values:
        raise TypeError(f"specrun.load() has no option {next(iter(values))!r}")
    notices: list[str] = []
    model = open_model(models, speculation, machine, SamplingOptions().temp, Fetcher(models.pull), notices.append)
    notices += model.notices
    model.notices = notices  # later notices are appended to the same list
    return model


def _taken(group: type[Group], values: dict[str, Any]) -> Group:
    """The option group made from those `values` that are its fields. They are removed from `values`."""
    return group(**{name: values.pop(name) for name in group.__dataclass_fields__ if name in values})


def busy_cores(watch: LoadWatch, options: RunOptions, placement: Placement | None) -> list[str]:
    """A notice if the default number of threads is more than other programs leave cores free for; else none.

    The number of threads stays as it is: with K and V both in f16, as most targets have them, llama.cpp sums the
    attention of a plain pass in as many parts as there are threads, so the text would depend on what else runs.

    watch: made before the model was loaded. options: with the profile, whose threads were chosen on purpose, as the
        user's are. placement: with a target in VRAM the cores compute next to nothing.
    """
    is_decided = options.with_profile.settings.threads is not None
    if is_decided or watch.seconds < _SECONDS_OF_A_LOOK or (placement and placement.regime == "in VRAM"):
        return []
    load, wanted = watch.so_far(), usable_cores()
    free = load.threads_beside(wanted)
    if free == wanted:
        return []
    return [
        f"other programs hold {load.cores:.1f} of {load.n_cores} cores, and llama.cpp's {wanted} threads wait for each "
        f"other; `--threads {free}` may be several times as fast (`specrun doctor` names the programs)"
    ]

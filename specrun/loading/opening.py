"""Opens a model: resolves the options, tries a first pass on a GPU that is new to it, and loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from specrun.catalog.heads import drafting_head
from specrun.catalog.resolve import Fetcher, way_to_draft
from specrun.hardware.cpu import LoadWatch
from specrun.loading import first_pass
from specrun.loading.default_settings import mapped_if_short, with_defaults
from specrun.loading.learning import Learner
from specrun.loading.many import Crowd, with_room
from specrun.loading.model import Model
from specrun.loading.placing import LoadPlan, plan_load
from specrun.loading.resolving import run_options, with_profile
from specrun.loading.run_options import Here, RunOptions
from specrun.long_run import no_display
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import SamplingOptions
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.speculation.method import Plan

LEFT_OUT = (
    "the draft model is not loaded, because experts that do not fit need its memory more; "
    "`specrun tune` measures whether drafting with it pays"
)
GAINS_NOTHING = "the draft model is not loaded, because it does not pay here (by the profile of this machine)"

Group = TypeVar("Group", ModelOptions, SpeculationOptions, MachineOptions)


def open_model(
    models: ModelOptions,
    speculation: SpeculationOptions,
    machine: MachineOptions,
    temperature: float,
    fetcher: Fetcher,
    note: Callable[[str], None],
    largest: Plan | None = None,
    progress: Callable[[], AbstractContextManager[Callable[[str], None]]] = lambda: nullcontext(no_display),
    parallel: int = 1,
    crowd: Crowd | None = None,
    is_fixed: bool = False,
    most_ram: int | None = None,
    is_measured: bool = False,
    keeps_prompts: bool = False,
) -> Model:
    """Resolve the options, load the model and return it.

    temperature: of the texts to come, on which the size of trees may depend. is_fixed: whether all of them have it.
    fetcher: downloads missing models.
    note: called with each notice that arises before anything is loaded.
    most_ram: bytes of RAM that both models may take; None for all that is free.
    is_measured: whether texts are compared, so that all get the same number of threads.
    largest: a further plan for which the contexts must have room. parallel: most texts written at the same time.
    crowd: the texts to come, if there is a list of them; as many are written at the same time as there is room for.
    keeps_prompts: whether prompts that are read are kept on disk, and taken up from there.
    progress: gives the display that shows what is being loaded. Nothing is asked or fetched while it is open.

    Raises the errors of `Model`, MissingModelError and HubError.
    """
    asked = run_options(models, speculation, machine, fetcher, note)
    asked = with_profile(asked, speculation, temperature, note)
    watch = LoadWatch()
    here = Here.of(asked)
    if most_ram is not None:
        here = replace(here, ram_bytes=min(most_ram, here.ram_bytes))
    options = replace(asked, largest=largest, parallel=parallel)
    if crowd:
        options, fewer = with_room(options, crowd, here)
        if fewer:
            note(fewer)
    plan = plan_load(options, here)
    plan, left_out = for_experts(options, plan, temperature if is_fixed else None)
    if left_out:
        note(left_out)
    plan = mapped_if_short(plan, asked.settings) if asked.profile else with_defaults(plan)
    learns = speculation.learn and speculation.speculate == "auto" and speculation.method is None
    with progress() as show:
        plan, crashes = first_pass.checked(plan, show)
        learner = Learner(asked, plan.options.settings, note) if learns and not asked.profile else None
        model = Model(plan, learner, show)
    model.notices[:0] = crashes
    wants_draft = asked.draft is None and models.draft is None and any(plan.method.needs_draft for plan in asked.plans)
    if wants_draft and (way := way_to_draft(models.target)):
        instead = ", so it drafts from the text itself" if len(asked.plans) > 1 else ""
        model.notices.append(f"no draft for {models.target}{instead}; {way}")
    model.follow_load(watch, again=not is_measured)
    if keeps_prompts:
        model.keep_prompts()
    return model


def for_experts(options: RunOptions, plan: LoadPlan, temperature: float | None = None) -> tuple[LoadPlan, str | None]:
    """What `auto` runs with: a plan without the draft model, and a line that says so, or the plan as it is and None.

    In a pass over several tokens a mixture reads the experts of all of them, so drafting pays least where experts are
    read from disk, and each expert that leaves memory for the draft model is read again and again. So one is loaded
    only if the profile follows a plan with it: at this temperature, or at any for None, where texts of several may
    come.

    options: those of the plan, without their profile's settings and plans.
    """
    file, draft, profile = plan.here.target, plan.here.draft, options.profile
    drafts = plan.options.drafts and not (options.largest and options.largest.method.needs_draft)
    if plan.placement.regime != "streamed" or not (draft and drafts and options.follow and 0 < file.used_share < 1):
        return plan, None
    if profile:
        asked = profile.plans if temperature is None else [profile.at(temperature)]
        if any(tuned.plan.method.needs_draft for tuned in asked):
            return plan, None
    if (head := drafting_head(file, draft)) and head.is_own:  # its weights are the target's
        return plan, None
    plans = tuple(plan for plan in options.plans if not plan.method.needs_draft)
    alone = replace(options, draft=None, plans=plans, profile=profile.without_draft() if profile else None)
    return plan_load(alone, plan.here), GAINS_NOTHING if profile else LEFT_OUT


def load(target: str | Path | None, draft: str | Path | None, options: Mapping[str, Any]) -> Model:
    """What `specrun.load` does."""
    values = {**options, "target": target and str(target), "draft": draft and str(draft)}
    parallel, keeps_prompts = values.pop("parallel", 1), values.pop("prompt_cache", False)
    models, speculation = _taken(ModelOptions, values), _taken(SpeculationOptions, values)
    machine = _taken(MachineOptions, values)
    if values:
        raise TypeError(f"specrun.load() has no option {next(iter(values))!r}")
    notices: list[str] = []
    asked = models, speculation, machine, SamplingOptions().temp, Fetcher(models.pull), notices.append
    model = open_model(*asked, parallel=parallel, keeps_prompts=keeps_prompts)
    notices += [*model.notices, *([model.threads_notice] if model.threads_notice else [])]
    model.notices = notices  # later notices are appended to the same list
    return model


def _taken(group: type[Group], values: dict[str, Any]) -> Group:
    """The option group made from those `values` that are its fields. They are removed from `values`."""
    return group(**{name: values.pop(name) for name in group.__dataclass_fields__ if name in values})

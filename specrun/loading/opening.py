"""Opens a model: finds the files and the profile that options mean, tries a first pass on a GPU that is new to the
model, and loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from specrun import kept_facts
from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import drafting_head
from specrun.catalog.here import ollama_behind
from specrun.catalog.pairs import check_tokenizer
from specrun.catalog.resolve import NO_DRAFT, OWN_HEAD, Fetcher, local_pair, way_to_draft
from specrun.decoding import tree_shapes
from specrun.decoding.prompts import given_template
from specrun.errors import UsageError
from specrun.hardware.cpu import LoadWatch
from specrun.kept_facts import KeptFact
from specrun.llama import chat_template, library, offload_threshold
from specrun.loading import first_pass, outdated
from specrun.loading.default_settings import mapped_if_short, with_defaults
from specrun.loading.learning import Learner
from specrun.loading.many import Crowd, with_room
from specrun.loading.model import Model
from specrun.loading.placing import Here, LoadPlan, plan_load
from specrun.loading.run_options import RunOptions, identity_of, subject_of
from specrun.long_run import no_display
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import SamplingOptions
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.profiles import profile_files
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
    asked = profiled(run_options(models, speculation, machine, fetcher, note), speculation, temperature, note)
    watch = LoadWatch()
    here = Here.of(asked.with_profile)
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


def run_options(
    models: ModelOptions,
    speculation: SpeculationOptions,
    machine: MachineOptions,
    fetcher: Fetcher,
    note: Callable[[str], None],
) -> RunOptions:
    """What the options ask for, before any profile. `note` is called with a sentence about the draft that was chosen.

    Raises UsageError for impossible options, MissingModelError or HubError for models that cannot be downloaded, and
    ModelFileError for files that are no models, or have no tokenizer.
    """
    if models.target is None and models.draft not in (None, NO_DRAFT, *embedded.DRAFTS):
        raise UsageError("--draft needs a target to draft for; give it with --target")
    plans = speculation.plans()
    settings, draft_settings = machine.target_settings(), machine.draft_settings()
    drafting = any(plan.drafts and plan.method.needs_draft for plan in plans)
    draft_name = models.draft or _wanted_head(models.target, plans)
    target, draft = local_pair(models.target, draft_name, drafting, fetcher, note)
    for path in filter(None, (target, draft)):
        check_tokenizer(GgufFile.read(path))
    return RunOptions(
        target=target,
        draft=draft,
        plans=plans,
        ctx_size=machine.ctx_size,
        settings=settings,
        draft_settings=draft_settings,
        exact=machine.exact,
        residency=machine.residency,
        follow=speculation.is_auto,
        may_shrink=speculation.is_auto,
        chat_template=given_template(models.chat_template)
        if models.chat_template
        else _template_of_ollama(models.target, target, note),
    )


def _template_of_ollama(name: str | None, target: Path, note: Callable[[str], None]) -> str | None:
    """The name of llama.cpp's template that does what Ollama's does, for a model of Ollama's whose file has none."""
    model = ollama_behind(name, target)
    if not model or not model.template or GgufFile.read(target).chat_template:
        return None
    if found := chat_template.recognized(model.template):
        note(f"chat template: llama.cpp's {found}, whose format Ollama's template of {name} has")
    return found


def _wanted_head(target: str | None, plans: Sequence[Plan]) -> str | None:
    """The name of the head that a method asks for, where it comes with the target."""
    wanted = next((plan.method.head for plan in plans if plan.method.head), None)
    if wanted == "mtp":
        return OWN_HEAD
    return wanted if embedded.is_meant(target) and wanted in embedded.DRAFTS else None


def _offload_min_batch(options: RunOptions) -> int | None:
    """The threshold of offloading that the profile for these options was measured with; None for llama.cpp's own.

    It has to be known before llama.cpp looks for devices, which are a part of a profile's identity; so everything else
    is compared. Without a draft, profiles with any draft count.
    """
    wanted = {**subject_of(options), **library.identity()}
    files = [file for file in wanted.pop("files") if file]
    found: dict[str, int] = {}
    for kept in kept_facts.every("profiles"):
        if isinstance(kept, KeptFact) and kept.of["files"][: len(files)] == files and wanted.items() <= kept.of.items():
            found[kept.value["created"]] = kept.value["settings"].get("offload_min_batch")
    return found[max(found)] if found else None


def profiled(
    options: RunOptions, speculation: SpeculationOptions, temperature: float, note: Callable[[str], None]
) -> RunOptions:
    """The options with the profile of this pair on this machine, if it exists.

    The profile's settings are always used, because the text may depend on them; its plans are used only with `auto`.
    `note` is called with a notice about an outdated profile. Raises UsageError for a method that needs a profile.
    """
    are_saved = profile_files.are_saved()
    if options.draft is None and not are_saved:
        return options
    if are_saved and offload_threshold.is_open():
        offload_threshold.settle(_offload_min_batch(options))
    identity = identity_of(options)
    if options.draft is None:
        # The newest profile of the target with any draft, so that a text is the same without a draft.
        profile = profile_files.of_target(identity)
        return replace(options, profile=profile.without_draft() if profile else None)
    saved = profile_files.find(identity, note)
    counts = saved is None and are_saved and (speculation.is_auto or speculation.method)
    if counts and (why := outdated.why_outdated(identity)):
        note(why)
    if speculation.method:
        plan = options.plans[0]
        if saved:
            plan = tree_shapes.by_profile(plan, saved, temperature, speculation.is_open)
        elif plan.method.is_adaptive:
            raise UsageError(f"--method {speculation.method} needs a profile of this pair; run `specrun tune` first")
        options = replace(options, plans=(plan,))
    return replace(options, profile=saved)

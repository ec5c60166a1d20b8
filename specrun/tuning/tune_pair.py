"""`specrun tune` from options to profiles: settings chosen, models loaded, everything measured, with every draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import geometric_mean
from typing import Any

from specrun import clock
from specrun.decoding import calibration_texts as texts
from specrun.hardware.cpu import LoadWatch, OtherLoad, allowed_cores, usable_cores, usable_threads
from specrun.hardware.machine import Machine
from specrun.hardware.placement import Placement
from specrun.llama import devices, offload_threshold, tiled_kernels
from specrun.llama_settings import LlamaSettings
from specrun.loading.default_settings import with_defaults
from specrun.loading.model import Model
from specrun.loading.placing import LoadPlan, plan_load
from specrun.loading.run_options import RunOptions, identity_of
from specrun.loading.trial import best_of, is_faster
from specrun.long_run import Run
from specrun.profiles.profile import Profile, TriedSettings
from specrun.speculation.drafters.cost_aware import MERGED
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.pass_times import MOST_TOKENS
from specrun.tuning import prompt_passes, settings_trials
from specrun.tuning.settings_trials import Tried
from specrun.tuning.tuner import EFFORTS, EffortName, Tuner
from specrun.tuning.unfinished import Stages, UnfinishedRun, key_of

_SETTINGS_SHARE = 0.3  # time of the settings' trials, as a share of the effort's seconds, to which it is added
_PROMPT_SHARE = 0.15  # of the effort's seconds, for passes over prompts, where settings were tried before
_LEAST_SHARE = 0.8  # of the effort's seconds, that the other measurements get in any case


class OtherProcessNeededError(Exception):
    """The fastest settings need another threshold of offloading, which this process cannot change any more.

    What was measured is kept: the same command, run in a process whose environment has `variables`, goes on from there.
    """

    def __init__(self, offload_min_batch: int) -> None:
        super().__init__(f"{offload_min_batch} tokens")
        self.variables = {offload_threshold.VARIABLE: str(offload_min_batch)}


def expected_seconds(effort: EffortName) -> float:
    """About how long measuring a pair takes."""
    return (1 + _SETTINGS_SHARE) * EFFORTS[effort].seconds


def tune_pair(
    options: RunOptions,
    effort_name: EffortName,
    temperatures: Sequence[float],
    own: Sequence[texts.TuningText] | None,
    raw: bool,
    run: Run,
    first: tuple[Profile, Placement] | None = None,
) -> tuple[Profile, Placement]:
    """Measure a pair and choose its plans: the profile, not saved yet and without a picture, and where the layers lie.

    own: the user's own prompts, which are continued as they are with `raw`.
    first: what was measured of the same target with another draft, whose settings and pass times of the target hold
    for this pair too if its layers lie in the same places.
    Raises KeyboardInterrupt, between two passes, once the run is interrupted, and OtherProcessNeededError.
    """
    effort, started = EFFORTS[effort_name], clock.now()
    identity = identity_of(options)
    unfinished = UnfinishedRun(identity, key_of(effort_name, temperatures, own, raw))
    run = run.expected_to_take(expected_seconds(effort_name))
    run.show("looking at this machine")
    here = devices.this_machine(options.settings.rpc, options.target)
    options = replace(options, plans=(OFF.plan(), MERGED.plan(MOST_TOKENS, MOST_TOKENS - 1)))
    plan = plan_load(options)
    placement = plan.placement
    if not (first or unfinished.is_resumed):  # else it was said before
        load = LoadWatch(with_names=True).after()
        if _takes_cores(load, options.settings.threads, placement):
            how = "press Ctrl-C and run this again when the cores are free"
            run.note(f"{load}, so what is measured now holds for a busy machine; {how}")
    if first and placement.holds_target_like(first[1]):
        unfinished.take_target(first[0])
    is_tried = placement.regime != "streamed" or effort_name == "thorough"
    stages = unfinished.stages
    if stages.settings is None:
        chosen = _choose_settings(options, plan, effort.seconds, is_tried, first is None, run)
        stages.settings, tried, stages.prompt_ms = chosen
        stages.tried = [TriedSettings(t.name, t.ms, t.exact_sizes, t.score(), t.prompt_ms) for t in tried]
        unfinished.save()
    if stages.settings.offload_min_batch not in (None, offload_threshold.in_use()):
        raise OtherProcessNeededError(stages.settings.offload_min_batch)
    unpadded = replace(options, settings=options.settings.over(stages.settings), exact=False)
    with Model(unpadded, show=run.display) as model:
        for notice in model.notices:
            run.note(notice)
        if unfinished.is_resumed:
            run.note("going on with what an earlier run has measured")
        # What the trials left of their time, or took of more, is that of the other measurements.
        seconds = (1 + _SETTINGS_SHARE) * effort.seconds - (clock.now() - started)
        effort = replace(effort, seconds=max(seconds, _LEAST_SHARE * effort.seconds))
        prompts = [(text.kind, model.prompt_tokens(text.prompt, raw)) for text in own or ()]
        Tuner(model, effort, temperatures, unfinished, run, options.exact).measure(prompts)
        residency = model.residency
    notices = [] if is_tried else [settings_trials.NOT_TRIED]
    notices += [residency.notice] if residency.notice else []
    notices += busy_notices(stages.other_load, options.settings.threads, placement)
    profile = _profile(options, identity, here, placement.regime, stages)
    return replace(profile, residency=residency, notices=notices), placement


def _profile(options: RunOptions, identity: dict[str, Any], here: Machine, regime: str, stages: Stages) -> Profile:
    """What the stages have measured, when all of them are over."""
    assert stages.settings
    assert stages.target
    assert stages.exact_sizes
    assert stages.learned
    draft = stages.learned.draft
    return Profile(
        identity=identity,
        target=options.target.name,
        draft=options.draft.name if options.draft and draft else "",
        folders=options.folders,
        hardware={"summary": _summary(here), **asdict(here)},
        settings=stages.settings,
        regime=regime,
        exact_sizes=stages.exact_sizes,
        pads=stages.pads,
        costs=CostModel(stages.target, draft),
        acceptance=stages.learned.acceptance,
        plans=stages.learned.plans,
        tried=stages.tried,
        prompt_ms=stages.prompt_ms,
        other_load=stages.other_load,
    )


def busy_notices(cores: float, n_threads: int | None, placement: Placement) -> list[str]:
    """A sentence if other programs took cores that passes wanted. cores: that they held. n_threads, placement: as of
    `_takes_cores`.
    """
    load = OtherLoad(cores, len(allowed_cores()))
    if not _takes_cores(load, n_threads, placement):
        return []
    held = f"other programs held {cores:.1f} of {load.n_cores} cores while this target was measured"
    return [f"{held}, so passes took longer than they do alone; run `specrun tune` again when the cores are free"]


def _takes_cores(load: OtherLoad, n_threads: int | None, placement: Placement) -> bool:
    """Whether other programs hold cores that passes want. n_threads: that the user gave. With a target in VRAM the
    cores compute next to nothing.
    """
    wanted = n_threads or usable_cores()
    return placement.regime != "in VRAM" and load.threads_beside(wanted) < wanted


def _choose_settings(
    options: RunOptions, plan: LoadPlan, seconds: float, is_tried: bool, is_first: bool, run: Run
) -> tuple[LlamaSettings, list[Tried], dict[int, float]]:
    """The target's settings, all that were tried, and the milliseconds to read a token by the size of a prompt's pass.

    seconds: the effort's. is_tried: whether there is time to try any. is_first: see `_try_settings`.
    """
    settings_run = run.stage(_SETTINGS_SHARE * seconds)
    defaults, tried = with_defaults(plan).options.settings, list[Tried]()
    # Where reading hides what passes take, V in bf16, the default with a profile, may keep bits at no cost.
    settings = defaults if options.exact else LlamaSettings(tiled_from=defaults.tiled_from)
    if is_tried:
        settings, tried = _try_settings(options, plan, defaults, settings_run, is_first)
    # What the environment has chosen holds for what is measured now, and later runs may lack it.
    if settings.offload_min_batch is None and not offload_threshold.is_open():
        settings = replace(settings, offload_min_batch=offload_threshold.in_use())
    if settings.tiled is None and tiled_kernels.in_use() != "auto":
        settings = replace(settings, tiled=tiled_kernels.in_use())
    prompt_run = run.stage(_PROMPT_SHARE * seconds) if is_tried else settings_run
    settings, prompt_ms = _choose_prompt_pass(options, plan, settings, tried, prompt_run)
    return settings, tried, prompt_ms


def _try_settings(
    options: RunOptions, plan: LoadPlan, defaults: LlamaSettings, run: Run, is_first: bool
) -> tuple[LlamaSettings, list[Tried]]:
    """The fastest of llama.cpp's settings for the target, and all that were tried.

    is_first: whether no other pair was measured in this process, which then may need another environment.
    """
    placement, file = plan.placement, plan.here.target
    n_gpus = len(plan.here.gpus) if placement.n_gpu_layers else 0
    variations = settings_trials.variations(
        n_logical=usable_threads(),
        n_threads=options.settings.threads or usable_cores(),
        can_repack=placement.can_repack,
        is_split=placement.regime == "partly in VRAM",
        n_gpus=n_gpus,
        has_tiled=options.exact and not n_gpus and tiled_kernels.compute(file.types),
        knows_attention=not (placement.n_gpu_layers or settings_trials.bits_count(options)),
        has_threshold=is_first and offload_threshold.is_open(),
    )
    return settings_trials.choose(options, defaults, [*variations], texts.together(), run, placement.n_gpu_layers > 0)


def _choose_prompt_pass(
    options: RunOptions, plan: LoadPlan, settings: LlamaSettings, tried: Sequence[Tried], run: Run
) -> tuple[LlamaSettings, dict[int, float]]:
    """The settings with the best size of a pass over a prompt, and the milliseconds to read a token by that size."""
    if options.settings.ubatch_size or options.settings.batch_size:
        return settings, {}
    sizes = prompt_passes.sizes_that_fit(options, settings, plan.here)
    placement = plan.placement
    is_bounded = not placement.n_gpu_layers and not placement.request.target.is_moe
    chosen = [trial for trial in tried if trial.settings == settings]
    gains = not (is_bounded and chosen) or prompt_passes.may_gain(chosen[0].ms[1], chosen[0].prompt_ms)
    if not gains or len(sizes) < 2:
        return settings, {}
    return prompt_passes.choose(options, settings, sizes, is_bounded, texts.together(), run)


def _summary(here: Machine) -> dict[str, str]:
    """The machine in a few lines, by their headings."""
    memory = here.memory
    summary = {
        "cpu": f"{here.cpu.name}, {here.cpu.n_physical} cores, {here.cpu.n_usable} used",
        "memory": f"{memory.total_bytes / 1e9:.1f} GB, {memory.available_bytes / 1e9:.1f} GB available",
    }
    for i, device in enumerate(here.gpus):
        summary[f"gpu {i}"] = str(device)
    if here.storage and here.storage.bytes_per_second:
        summary["storage"] = f"{here.storage.device}, reads {here.storage.bytes_per_second / 1e9:.2f} GB/s"
    return summary


@dataclass(frozen=True)
class TunedDraft:
    """What was measured of the target with a draft."""

    name: str  # as the user or the catalog named the draft, or its file's name
    options: RunOptions
    profile: Profile
    placement: Placement
    first: TunedDraft | None = None  # what was measured with the first of the drafts that are compared

    @property
    def plain(self) -> float:
        """Tokens per second of plain decoding.

        It is as fast with all drafts with which the target's layers lie in the same places. The machine may have become
        faster or slower in between, by more than the drafts differ, so it counts as measured at first.
        """
        if self.first and self.placement.holds_target_like(self.first.placement):
            return self.first.plain
        return geometric_mean(plan.plain_tokens_per_second for plan in self.profile.plans)

    @property
    def rate(self) -> float:
        """Expected tokens per second, the geometric mean over the temperatures."""
        ratios = [one.predicted_tokens_per_second / one.plain_tokens_per_second for one in self.profile.plans]
        return self.plain * geometric_mean(ratios)


def tune_drafts(
    drafts: Sequence[tuple[str | None, RunOptions]],
    effort: EffortName,
    temperatures: Sequence[float],
    own: Sequence[texts.TuningText] | None,
    raw: bool,
    run: Run,
) -> list[TunedDraft]:
    """Measure the pairs one after the other. What concerns the target alone is measured once, with the first draft.

    drafts: the name of each draft (None if the user named none), and the options of its pair. The other parameters, and
    what is raised, are those of `tune_pair`.
    """
    tuned: list[TunedDraft] = []
    for i, (given, options) in enumerate(drafts, start=1):
        file = options.draft.name if options.draft else "none"
        name = given or file
        shown = run.labelled(f"{i} of {len(drafts)}, {file}") if len(drafts) > 1 else run
        first = tuned[0] if tuned else None
        known = (first.profile, first.placement) if first else None
        profile, placement = tune_pair(options, effort, temperatures, own, raw, shown, known)
        tuned.append(TunedDraft(name, options, profile, placement, first))
    return tuned


def fastest_of(tuned: Sequence[TunedDraft]) -> TunedDraft:
    """The draft with which the target is expected to be fastest. The first is kept unless another is clearly faster."""
    best = best_of(tuned, lambda draft, _: draft, lambda new, best: is_faster(1 / new.rate, 1 / best.rate)).best
    assert best, "at least one draft was measured"
    return best

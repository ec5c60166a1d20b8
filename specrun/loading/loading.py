"""Loading a pair: both models, the check that they fit together, and their contexts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from specrun import clock
from specrun.catalog.heads import Head
from specrun.catalog.layer_states import is_untried
from specrun.catalog.pairs import check_sizes
from specrun.display_text import size_text
from specrun.errors import OutOfMemoryError, UsageError
from specrun.hardware.placement import MAX_STEPS_DOWN, Placement
from specrun.llama import AnyDraft, DraftContext, LlamaModel, TargetContext, library
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.facts.relied_on import CELLS, supported, why_not
from specrun.llama.target import target_slots
from specrun.llama_settings import LlamaSettings
from specrun.loading.default_settings import lost_bits, of_draft
from specrun.loading.draft_loading import checked_head, make_drafts, other_tokens
from specrun.loading.placing import LoadPlan, attention_on_gpus
from specrun.loading.residency import plan_streaming, target_context
from specrun.loading.run_options import KeptStates, RunOptions, context_length
from specrun.locations import file_bytes
from specrun.long_run import left_text
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.costs import CostTable, PassTime

_SECONDS_OF_A_RATE = 0.2  # less says nothing about the whole
# Committed tokens that wait where rejected passes are decoded again and weights lie in RAM. There a further token costs
# about a third of a plain pass, so that three or four in front of a pass cost as much as one of their own; elsewhere
# next to nothing.
_FEW_WAITING = 4
# Tokens of the passes of `warm_up`, the most usual first. Kernels that multiply by quantized weights are made for each
# size up to 8 and for multiples of 8; those of attention for powers of two.
_WARM_UP_SIZES = (1, 2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 24, 48)
_WARM_UP_SECONDS = 0.3  # after which the rest is left to the texts
_TIMES = 3  # a pass that was made twice is replayed as a whole on a GPU from then on, which the third prepares
_TIMED = (1, 8)  # tokens of the draft passes that are timed
_TOKEN = 0  # any token of the vocabulary


@dataclass(frozen=True)
class LoadedPair:
    """A target and, if a plan needs it, a draft."""

    targets: tuple[TargetContext, ...]  # one for each text that may be written at a time, all in one context
    drafts: tuple[AnyDraft, ...]  # likewise, or for the first text only; empty if no plan needs one
    plans: tuple[Plan, ...]  # the plans of the options that can run
    ctx_size: int  # most tokens of prompt and answer together
    placement: Placement | None  # which layers are in VRAM; None without a GPU
    notices: list[str]  # for the user: a sentence for each difference from what the options ask
    resources: ExitStack  # closing it frees contexts and models; what is pushed onto it later is freed before them

    @property
    def target(self) -> TargetContext:
        """The target of a text that is written alone."""
        return self.targets[0]

    @property
    def model(self) -> LlamaModel:
        """The target's model."""
        return self.target.context.model


def load_pair(plan: LoadPlan, show: Callable[[str], None]) -> LoadedPair:
    """Load the models of the plan. If VRAM turns out to be too small, a few smaller placements are tried.

    Raises ModelFileError, PairError, UsageError or LlamaError if the files or the machine do not allow it.
    """
    settings, unsupported = supported(plan.options.settings)
    plan, n_steps = replace(plan, options=replace(plan.options, settings=settings)), 0
    while True:
        resources, notices = ExitStack(), list(unsupported)
        try:
            pair = _load(plan, resources, show, notices)
            break
        except OutOfMemoryError:
            resources.close()
            smaller = plan.placement.step_down() if n_steps < MAX_STEPS_DOWN else None
            if smaller is None:
                raise
            plan, n_steps = replace(plan, placement=smaller), n_steps + 1
        except BaseException:
            resources.close()
            raise
    if n_steps:
        notices.append(
            f"VRAM was too small for the planned layers; it now holds {plan.placement.layers_text} "
            "(set them with --gpu-layers)"
        )
    return pair


def _load(plan: LoadPlan, resources: ExitStack, show: Callable[[str], None], notices: list[str]) -> LoadedPair:
    """notices: become those of the pair."""
    options, here, placement, states = plan.options, plan.here, plan.placement, plan.states
    head = checked_head(options, here)
    settings, draft_settings = _settings(plan, head)
    streaming = plan_streaming(plan, settings, with_mtp=head is not None and head.is_own)
    settings, draft_settings = streaming.loadable(settings, draft_settings)
    model, draft_model = _models(options, settings, draft_settings, head, resources, show)
    plans = _possible(options.plans, model, draft_model, states, notices)
    shared = other_tokens(model, draft_model, options.plans, notices) if draft_model and not head else None
    ctx_size = context_length(options.ctx_size, model.n_ctx_train)
    notices += _differences(options, plans, model, ctx_size, bool(here.gpus))
    if not any(plan.method.needs_draft for plan in plans):
        draft_model = None
    if not options.exact and (lost := lost_bits(here.target)):
        notices.append(lost)
    options = _at_a_time(plan, settings, notices)

    def configured(
        options: RunOptions, model: LlamaModel, settings: LlamaSettings, states: KeptStates | None
    ) -> ContextConfig:
        config = options.context_config(plans, ctx_size, states)
        settings = settings.over(_cache_types(model, settings))
        decided = attention_on_gpus(model.file, settings) if settings.gpu_layers else settings
        return replace(config, settings=decided)

    if streaming.reader:
        show(f"reading the weights of {model.name} that stay in memory from {options.target.parent}")
    context = target_context(model, configured(options, model, settings, states), streaming, resources, notices)
    targets = target_slots(context)
    cells = targets[0].cells
    if cells.most_pending is not None and not (streaming.reader or settings.gpu_layers):
        cells.most_pending = _FEW_WAITING
    drafts: list[AnyDraft] = []
    # A pass over weights that are neither in VRAM nor read into RAM may take as long as the disk.
    if settings.gpu_layers and (placement.regime == "in VRAM" or settings.load_mode == "none"):
        warm_up(context)
    if draft_model:
        # A head, and a draft of recurrent states or for them, drafts for a single text.
        of_one = head or model.is_recurrent or draft_model.is_recurrent
        config = partial(configured, options.alone if of_one else options)
        drafts = make_drafts(draft_model, head, shared, targets, plans, draft_settings, config, resources)
        if draft_settings.gpu_layers and isinstance(drafts[0], DraftContext):
            warm_up(drafts[0].context)
    where = placement if here.gpus else None
    return LoadedPair(tuple(targets), tuple(drafts), plans, ctx_size, where, notices, resources)


def _settings(plan: LoadPlan, head: Head | None) -> tuple[LlamaSettings, LlamaSettings]:
    """The settings of the target and of the draft, with their places."""
    options, placement = plan.options, plan.placement
    settings, draft_settings = options.settings, options.draft_settings
    if plan.here.gpus:
        settings, draft_settings = settings.over(placement.settings), draft_settings.over(placement.draft_settings)
    else:
        settings, draft_settings = replace(settings, gpu_layers=None), replace(draft_settings, gpu_layers=None)
    if head and head.is_own:
        draft_settings = replace(draft_settings, gpu_layers=settings.gpu_layers)
    elif head and settings.gpu_layers and not draft_settings.gpu_layers:
        # It may use the target's output matrix, so its context has to know the GPUs. Its own layer stays in RAM.
        draft_settings = replace(draft_settings, gpu_layers=1)
    if options.drafts and plan.here.draft and head is None:
        draft_settings = of_draft(plan.here.draft, draft_settings)
    return settings, draft_settings


def _models(
    options: RunOptions,
    settings: LlamaSettings,
    draft_settings: LlamaSettings,
    head: Head | None,
    resources: ExitStack,
    show: Callable[[str], None],
) -> tuple[LlamaModel, LlamaModel | None]:
    """The target, and the model that drafts, which is the target's own file for a head within it."""
    is_own_head = head is not None and head.is_own
    model = LlamaModel(options.target, settings, _progress(options.target, show), with_mtp=is_own_head)
    resources.enter_context(model)
    model.given_template = options.chat_template
    if is_own_head:
        return model, model
    if not options.drafts:
        return model, None
    assert options.draft
    is_head = head is not None
    draft_model = LlamaModel(options.draft, draft_settings, _progress(options.draft, show), is_head, with_mtp=is_head)
    resources.enter_context(draft_model)
    if not is_head:
        check_sizes(model.n_bytes, draft_model.n_bytes)
    return model, draft_model


def _differences(
    options: RunOptions, plans: Sequence[Plan], model: LlamaModel, ctx_size: int, has_gpu: bool
) -> list[str]:
    """Notices about what is otherwise than the options ask, or than the user may expect."""
    notices = []
    if (options.settings.gpu_layers or options.draft_settings.gpu_layers) and not has_gpu:
        why = "sees no GPU (`specrun doctor`)" if library.has_gpu() else "was built without a GPU backend"
        notices.append(f"all layers stay on the CPU, because this llama.cpp {why}")
    notices += [f"some passes take longer than they could, because {why}" for why in dict.fromkeys(model.why_usual)]
    if 0 < model.n_ctx_train < ctx_size:
        notices.append(
            f"{model.name} was trained for {model.n_ctx_train} tokens; with --ctx-size {ctx_size}, "
            "expect nonsense beyond them"
        )
    lossy = [plan.method.name for plan in plans if not plan.method.lossless]
    return [*notices, *(f"{name} is lossy: the text is not the target's own" for name in lossy)]


def _progress(path: Path, show: Callable[[str], None]) -> Callable[[float], None]:
    """Shows how far the loading of a model is, and how long the rest takes once that can be told."""
    started = clock.now()
    total = file_bytes(path)
    place = f"{path.name} from {path.absolute().parent}"
    show(f"loading {place}")

    def loaded(share: float) -> None:
        seconds = clock.now() - started
        done = share * total
        if share and seconds > _SECONDS_OF_A_RATE:
            rate = f"{size_text(done)} of {size_text(total)}, {size_text(done / seconds)}/s"
            show(f"loading {place}: {rate}{left_text(seconds * (1 - share) / share)}")

    return loaded


def _at_a_time(plan: LoadPlan, settings: LlamaSettings, notices: list[str]) -> RunOptions:
    """The options with as many texts at a time as are possible. `notices` get why these are fewer than were asked.

    settings: those that are decided for the target.
    """
    options, states = plan.options, plan.states
    if options.parallel == 1:
        return options
    alone = why_not(CELLS, settings)
    if states and options.pads:
        alone = "passes over recurrent states are padded for one text only"
    elif states and is_untried(plan.here.target):
        alone = "several texts with recurrent states of this kind are untried"
    elif states and states.n_texts == 1:
        alone = "the recurrent states of further texts would take too much memory"
    elif options.pads and settings.gpu_layers:
        alone = "on a GPU a token's bits depend on the cells in front of it"
    if alone:
        notices.append(CELLS.notice(alone))
        return options.alone
    if states and states.n_texts < options.parallel:
        notices.append(f"{states.n_texts} texts are written at a time; recurrent states of more take too much memory")
    return options


def _possible(
    plans: tuple[Plan, ...],
    model: LlamaModel,
    draft: LlamaModel | None,
    states: KeptStates | None,
    notices: list[str],
) -> tuple[Plan, ...]:
    """The plans as a target that keeps these states can follow them, with draft sources in place of a missing draft
    model. `notices` get what is otherwise than the user asked.
    """
    if model.is_recurrent and any(plan.drafts for plan in plans):
        if states == KeptStates():
            kind = model.file.architecture
            notices.append(f"speculation is off: rolling back rejected tokens in models of the kind {kind} is untried")
            return (OFF.plan(),)
        if len(plans) == 1 and not plans[0].is_chain and plans[0].method.needs_draft:
            notices.append(f"{model.name} has recurrent layers, so a pass checks one path: the best path of each tree")
        plans = tuple(plan.on_one_path() for plan in plans)
    if draft or not any(plan.method.needs_draft for plan in plans):
        return plans
    if len(plans) == 1:
        notices.append("speculation is off, because there is no draft model; give one with --draft")
        return (OFF.plan(),)
    drafting = [plan for plan in plans if plan.drafts and not plan.method.needs_draft]
    return (*(drafting or [DRAFTLESS.plan(max(plan.budget for plan in plans))]), OFF.plan())


def _cache_types(model: LlamaModel, settings: LlamaSettings) -> LlamaSettings:
    """The types of the K and V cache that the user left open. Raises UsageError for two that the model cannot have."""
    if not model.allows_two_kv_types:
        if settings.type_k and settings.type_v and settings.type_k != settings.type_v:
            options = "--cache-type-k and --cache-type-v"
            raise UsageError(f"{model.name} keeps K and V in one tensor; give {options} the same type")
        return LlamaSettings(type_k=settings.type_v, type_v=settings.type_k)
    # On the CPU llama.cpp has three flash attention kernels, and chooses by the size of the batch as long as K and V
    # have one type. With two types it always uses the same kernel, so a token's logits are the same bits in any pass.
    # bf16 values are no less precise than f16 here, because they are summed in float32 (docs/adr/0002).
    # GPU backends have no such kernel, and would leave attention to the CPU.
    if settings.gpu_layers or settings.flash_attn == "off":
        return LlamaSettings()
    return LlamaSettings(type_v="bf16")


def warm_up(context: LlamaContext) -> None:
    """Make passes of usual sizes, for which nobody waits, and leave the cache empty: as far as a fraction of a second
    suffices.

    Kernels are loaded into a GPU when they are first called, and which ones a pass calls depends on its tokens. On an
    H200 the first draft passes of their sizes took several times as long as later ones: `auto` took that for what
    drafting costs, and turned it off.
    """
    deadline = clock.now() + _WARM_UP_SECONDS
    for n in _WARM_UP_SIZES:
        if n > _most(context):
            continue
        for _ in range(_TIMES):
            _pass_ms(context, n)
            if clock.now() > deadline:
                return


def timed(context: LlamaContext) -> CostTable:
    """Milliseconds of a draft's pass over one token and over a few, each the least of some. The cache is empty again.

    What a draft pass takes cannot be guessed from the sizes of the files: such a guess kept `auto` from ever asking a
    draft that takes a hundredth of a slow target's pass. A program that holds a core for a moment makes one pass many
    times as slow as it is.
    """
    times = []
    for n in _TIMED:
        if n <= _most(context):
            _pass_ms(context, n)  # touches memory and loads kernels
            times.append(PassTime(n, 0, min(_pass_ms(context, n) for _ in range(_TIMES))))
    return CostTable(times)


def _pass_ms(context: LlamaContext, n: int) -> float:
    """The milliseconds of a pass over `n` tokens."""
    started = clock.now()
    context.decode(committed_tokens([_TOKEN] * n, 0, 1, n))
    ms = 1e3 * (clock.now() - started)
    context.remove(0, 0)
    return ms


def _most(context: LlamaContext) -> int:
    return min(context.config.n_batch, context.config.n_outputs, context.config.n_ctx)

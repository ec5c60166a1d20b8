"""From files and options to a running engine: models loaded, pair checked, contexts made, everything freed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.pairs import check_pair, check_sizes
from specrun.engine import Engine
from specrun.errors import OutOfMemoryError, UsageError
from specrun.hardware.device import Device, offload_devices
from specrun.hardware.memory import Memory
from specrun.hardware.model_shape import ModelShape
from specrun.hardware.placement import Placement, place
from specrun.hardware.placement_request import PlacementRequest
from specrun.llama import DraftContext, LlamaModel, TargetContext, devices, library
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.invariance import exact_up_to
from specrun.settings import UNDECIDED, LlamaSettings
from specrun.sources import RunSources
from specrun.speculation import FastestPlan, FixedPlan, Plan, PlanChooser
from specrun.speculation.method import DRAFT
from specrun.speculation.methods import METHODS
from specrun.speculation.shape import MAX_LEAVES

if TYPE_CHECKING:
    from specrun.tuning.profile import Profile

DEFAULT_CTX_SIZE = 4096
_PROMPT_BATCH = 512  # tokens of one prefill pass, llama.cpp's default ubatch
_MAX_PENDING = 64  # committed tokens that can wait in front of a tree
_MAX_SAFE_CTX_SIZE = 2**24
_CTX_OF_EXACTNESS = 40  # tokens behind which passes are compared
_PASSES_OF_EXACTNESS = 4
_MAX_STEPS_DOWN = 4  # smaller placements tried when loading runs out of memory


@dataclass(frozen=True)
class RuntimeOptions:
    """What to run and where. plans: the one to follow, or several to choose the fastest of while writing.
    largest: another plan that the contexts must hold. ctx_size None: the model's, at most 4096.
    settings, draft_settings: what is decided about running target and draft; the rest is chosen.
    profile: of this pair on this machine; its settings then take the place of what is open, and its plans that of
    `plans`, if `follow`.
    exact: speculate only in passes whose logits are the same bits as those of plain decoding.
    datastore, remember: more draft sources, see `specrun.sources`.
    overlap: draft while the target's passes run; None: where the plan says so.
    """

    target: Path
    draft: Path | None
    plans: tuple[Plan, ...]
    largest: Plan | None = None
    ctx_size: int | None = None
    settings: LlamaSettings = UNDECIDED
    draft_settings: LlamaSettings = UNDECIDED
    profile: Profile | None = None
    follow: bool = True
    exact: bool = False
    datastore: Path | None = None
    remember: bool = False
    overlap: bool | None = None

    @property
    def with_profile(self) -> RuntimeOptions:
        """The same with the profile's settings where they are open, and room for its plans."""
        if not self.profile:
            return self
        settings = self.settings.over(self.profile.settings)
        return replace(
            self, settings=settings, plans=(*(self.profile.candidates() if self.follow else ()), *self.plans)
        )

    @property
    def drafts(self) -> bool:
        """Whether the draft will be loaded: there is one, and a plan that wants it."""
        return self.draft is not None and any(plan.depth and _needs_draft(plan) for plan in self.plans)

    @property
    def also(self) -> tuple[Plan, ...]:
        """The plan to make room for beside those to follow, if there is one."""
        return (self.largest,) if self.largest else ()

    def context_length(self, n_ctx_train: int) -> int:
        """Tokens of text, for a model trained on `n_ctx_train` of them (0: it does not say). Raises UsageError."""
        if self.ctx_size is None:
            return min(n_ctx_train or DEFAULT_CTX_SIZE, DEFAULT_CTX_SIZE)
        if not 2 <= self.ctx_size <= _MAX_SAFE_CTX_SIZE:
            raise UsageError(f"--ctx-size must be between 2 and {_MAX_SAFE_CTX_SIZE}; got {self.ctx_size}")
        return self.ctx_size


class Runtime:
    """A loaded pair and its engine; close it, or use it in a `with`, to free everything.

    `candidates` are the plans that can really run, `plans` chooses among them, `placement` is where the layers went
    (None without a GPU), `profile` is that of this pair on this machine, if there is one, and `notices` says in
    sentences where anything differs from what was asked for.
    Raises ModelFileError, PairError or LlamaError if the files or the machine do not allow it.
    """

    def __init__(self, options: RuntimeOptions) -> None:
        self.notices: list[str] = []
        self._stack = ExitStack()
        options = options.with_profile
        self.placement = plan_placement(options)
        try:
            self._load_stepping_down(options)
        except BaseException:
            self.close()
            raise

    def _load_stepping_down(self, options: RuntimeOptions) -> None:
        """Load, giving VRAM back a few times if it turns out to be too little."""
        smaller = None
        for n_left in range(_MAX_STEPS_DOWN, -1, -1):
            try:
                self._load(options)
                break
            except OutOfMemoryError:
                smaller = self.placement.step_down() if self.placement and n_left else None
                if not smaller:
                    raise
                self.close()
                self.placement = smaller
        if smaller:
            layers = f"{smaller.n_gpu_layers} of the target's {len(smaller.layer_gpus)} layers"
            self.notices.append(
                f"VRAM was too small for what was planned; it now holds {layers} (--gpu-layers sets it)"
            )

    def _load(self, options: RuntimeOptions) -> None:
        self.notices = []
        settings, draft_settings = options.settings, options.draft_settings
        if self.placement:
            settings = settings.over(self.placement.settings)
            draft_settings = draft_settings.over(self.placement.draft_settings)
        self.model = self._stack.enter_context(LlamaModel(options.target, settings))
        draft_model = None
        if options.drafts:
            assert options.draft
            draft_model = self._stack.enter_context(LlamaModel(options.draft, draft_settings))
            self._check_pair(draft_model)
        self.candidates = self._possible(options.plans, draft_model)
        if not any(_needs_draft(plan) for plan in self.candidates):
            draft_model = None
        if (options.settings.gpu_layers or options.draft_settings.gpu_layers) and not library.has_gpu():
            self.notices.append("this llama.cpp was built without a GPU backend: all layers stay on the CPU")
        self.ctx_size = options.context_length(self.model.n_ctx_train)
        if 0 < self.model.n_ctx_train < self.ctx_size:
            self.notices.append(
                f"--ctx-size {self.ctx_size} is beyond the {self.model.n_ctx_train} tokens "
                f"that {self.model.name} was trained for: expect nonsense past them"
            )
        config = _context_config((*self.candidates, *options.also), self.ctx_size)
        target = self._context(self.model, config, settings)
        draft = self._context(draft_model, config, draft_settings) if draft_model else None
        n_common = min(model.n_vocab for model in (self.model, draft_model or self.model))
        self.datastore = options.datastore
        self._sources = RunSources(self.model, options.datastore, options.remember, self.notices.append)
        self._stack.callback(self._sources.close)
        self.engine = Engine(
            TargetContext(target), DraftContext(draft, n_common) if draft else None, self.ctx_size, self._sources.set,
            options.overlap,
        )  # fmt: skip
        self._stack.callback(self.engine.close)
        if options.exact and not options.profile and draft:
            self._keep_exact_plans()
        for plan in self.candidates:
            if not METHODS[plan.method].lossless:
                self.notices.append(f"{plan.method} is lossy: the text is not the target's own")
        self.profile = options.profile if draft else None
        self._follow = options.follow
        self.plans = self.chooser()

    def _possible(self, plans: tuple[Plan, ...], draft: LlamaModel | None) -> tuple[Plan, ...]:
        """Those of the plans that can run; where specrun is to choose and there is no draft, sources take its place."""
        if not any(plan.depth for plan in plans):
            return plans
        if not self.model.can_hold_tree or (draft and not draft.can_hold_tree):
            which = "draft" if self.model.can_hold_tree else "target"
            self.notices.append(f"the {which} is recurrent and cannot take tokens back: decoding plainly")
            return (Plan.off(),)
        if draft or not any(_needs_draft(plan) for plan in plans):
            return plans
        if len(plans) == 1:
            self.notices.append("no draft model: decoding plainly (give one with --draft)")
            return (Plan.off(),)
        self.notices.append("no draft model (--draft gives one): drafting from the text itself, where that pays")
        largest = max(plans, key=lambda plan: plan.budget)
        return (METHODS["draftless"].plan(largest.budget, largest.depth), Plan.off())

    def chooser(self) -> PlanChooser:
        """What chooses among `candidates`, knowing nothing yet but the profile."""
        if self.profile and self._follow:
            return self.profile.chooser()
        return FixedPlan(self.candidates[0]) if len(self.candidates) == 1 else FastestPlan(self.candidates)

    def settle(self, temperature: float) -> None:
        """Make ready for text of this temperature: a plan that needs a tree shape and has none gets one from a few
        passes over texts for calibrating, and a plan that is the only one gets the profile's tables to be weighed with.
        """
        self.candidates = tuple(self.shaped(self.candidates, temperature))
        if len(self.candidates) == 1 and not (self.profile and self._follow):
            self.plans = self.fixed(self.candidates[0], temperature)

    def shaped(self, plans: Sequence[Plan], temperature: float) -> list[Plan]:
        """The plans, those that need a tree shape and have none with one."""
        from specrun.tuning import growth_maps

        return list(growth_maps.filled(self, plans, temperature)) if self.engine.draft else list(plans)

    def fixed(self, plan: Plan, temperature: float) -> FixedPlan:
        """This plan for every pass, weighed with the profile's tables, if there is one."""
        return FixedPlan(plan, self.profile.guide(temperature) if self.profile else None)

    def forget(self, keep_caches: bool = False) -> None:
        """Empty the caches, and draft from nothing that was written before."""
        if not keep_caches:
            self.engine.reset()
        self.engine.sources = RunSources(self.model, self.datastore, False, self.notices.append).set

    def predicted(self, temperature: float) -> float | None:
        """Tokens a second that the profile promises at `temperature`; None without a profile."""
        return self.profile.at(temperature).predicted_tokens_per_second if self.profile else None

    def _keep_exact_plans(self) -> None:
        """Drop the plans with passes that would not give plain decoding's bits, as measured on these contexts."""
        sizes = sorted({2, 4, *(plan.budget for plan in self.candidates)})
        n = exact_up_to(self.engine.target, range(1, 32), sizes, _CTX_OF_EXACTNESS, _PASSES_OF_EXACTNESS)
        self.engine.reset()
        exact = tuple(plan for plan in self.candidates if plan.budget <= n)
        if exact != self.candidates:
            left_out = ", ".join(str(plan) for plan in self.candidates if plan not in exact)
            self.notices.append(f"--exact: left out {left_out}, whose passes change a token's last bits here")
        self.candidates = exact or (Plan.off(),)

    def _check_pair(self, draft: LlamaModel) -> None:
        check_sizes(self.model.n_bytes, draft.n_bytes)
        check_pair(self.model.vocabulary, draft.vocabulary)

    def _context(self, model: LlamaModel, config: ContextConfig, settings: LlamaSettings) -> LlamaContext:
        decided = settings.over(_cache_types(model, settings))
        return self._stack.enter_context(LlamaContext(model, replace(config, settings=decided)))

    def close(self) -> None:
        """Free contexts, then models. Safe to call twice."""
        self._stack.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _needs_draft(plan: Plan) -> bool:
    return DRAFT in METHODS[plan.method].needs


def plan_placement(options: RuntimeOptions) -> Placement | None:
    """Where the layers of the pair go; None without a GPU, where there is nothing to choose.

    Raises ModelFileError for a file that cannot be read, UsageError for a GPU that is not there.
    """
    gpus = offload_devices(devices.devices())
    if not gpus:
        return None
    _check_gpus(options.settings, gpus)
    return place(placement_request(options, gpus))


def placement_request(options: RuntimeOptions, gpus: Sequence[Device]) -> PlacementRequest:
    """What has to be placed, and where it may go. Raises ModelFileError for a file that cannot be read."""
    file = GgufFile.read(options.target)
    config = _context_config((*options.plans, *options.also), options.context_length(file.n_ctx_train))
    draft = GgufFile.read(options.draft) if options.draft and options.drafts else None
    return PlacementRequest(
        target=ModelShape.of(file, config.n_ctx, options.settings),
        draft=ModelShape.of(draft, config.n_ctx, options.draft_settings) if draft else None,
        gpus=tuple(gpus),
        ram_bytes=Memory.read().available_bytes,
        n_tokens=config.n_batch,
        n_rows=config.n_outputs,
        settings=options.settings,
        draft_settings=options.draft_settings,
    )


def _check_gpus(settings: LlamaSettings, gpus: Sequence[Device]) -> None:
    there = f"there {'is' if len(gpus) == 1 else 'are'} {', '.join(gpu.name for gpu in gpus)}"
    if settings.main_gpu is not None and settings.main_gpu >= len(gpus):
        raise UsageError(f"--main-gpu must be between 0 and {len(gpus) - 1}, {there}; got {settings.main_gpu}")
    if settings.tensor_split and len(settings.tensor_split) > len(gpus):
        raise UsageError(f"--tensor-split has {len(settings.tensor_split)} shares, but {there} only; give one for each")


def _context_config(plans: Sequence[Plan], ctx_size: int) -> ContextConfig:
    """A context that any of the plans can run in, with `ctx_size` tokens of text."""
    budget = max(plan.budget for plan in plans)
    n_leaves = max(1 if plan.is_chain else plan.shape.n_leaves if plan.shape else plan.budget for plan in plans)
    n_seq_max = min(n_leaves, MAX_LEAVES)
    return ContextConfig(
        n_ctx=ctx_size + budget + _MAX_PENDING,
        n_seq_max=n_seq_max,
        n_batch=max(_PROMPT_BATCH, budget + _MAX_PENDING),
        n_outputs=max(budget, n_seq_max),
    )


def _cache_types(model: LlamaModel, settings: LlamaSettings) -> LlamaSettings:
    """The types of K and V where the user leaves them open. Raises UsageError for two that the model cannot have."""
    if not model.allows_two_kv_types:
        if settings.type_k and settings.type_v and settings.type_k != settings.type_v:
            raise UsageError(f"{model.name} caches K and V in one tensor; give --cache-type-k and -v the same type")
        return LlamaSettings(type_k=settings.type_v, type_v=settings.type_k)
    # On the CPU llama.cpp has three flash attention kernels and chooses by the size of the batch as long as K and V
    # have one type. With two types it always takes the same one, so a token's logits are the same bits in any
    # pass; bf16 values lose nothing to f16 here, as they are summed in float32 (docs/exactness.md).
    if library.has_gpu() or settings.flash_attn == "off":
        return LlamaSettings()
    return LlamaSettings(type_v="bf16")

"""From files and options to a running engine: models loaded, pair checked, contexts made, everything freed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from specrun.catalog.pairs import check_pair, check_sizes
from specrun.engine.decoding import Engine
from specrun.engine.placing import plan_placement
from specrun.engine.run_options import RuntimeOptions, context_config, needs_draft
from specrun.engine.run_sources import RunSources
from specrun.errors import OutOfMemoryError, UsageError
from specrun.llama import DraftContext, LlamaModel, TargetContext, library
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.invariance import exact_up_to
from specrun.llama_settings import LlamaSettings
from specrun.speculation import FastestPlan, FixedPlan, Plan, PlanChooser
from specrun.speculation.registry import METHODS

_CTX_OF_EXACTNESS = 600  # tokens behind which passes are compared: from 512 on some kernels are others
_PASSES_OF_EXACTNESS = 4
_MAX_STEPS_DOWN = 4  # smaller placements tried when loading runs out of memory


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
        if not any(needs_draft(plan) for plan in self.candidates):
            draft_model = None
        if (options.settings.gpu_layers or options.draft_settings.gpu_layers) and not library.has_gpu():
            self.notices.append("this llama.cpp was built without a GPU backend: all layers stay on the CPU")
        self.ctx_size = options.context_length(self.model.n_ctx_train)
        if 0 < self.model.n_ctx_train < self.ctx_size:
            self.notices.append(
                f"--ctx-size {self.ctx_size} is beyond the {self.model.n_ctx_train} tokens "
                f"that {self.model.name} was trained for: expect nonsense past them"
            )
        config = context_config((*self.candidates, *options.also), self.ctx_size)
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
        if options.exact and any(plan.depth for plan in self.candidates):
            self._keep_to_exact_passes(options.profile.exact_up_to if options.profile else self._exact_up_to())
        for plan in self.candidates:
            if not METHODS[plan.method].lossless:
                self.notices.append(f"{plan.method} is lossy: the text is not the target's own")
        self.profile = options.profile if draft or not options.draft else None
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
        if draft or not any(needs_draft(plan) for plan in plans):
            return plans
        if len(plans) == 1:
            self.notices.append("no draft model: decoding plainly (give one with --draft)")
            return (Plan.off(),)
        self.notices.append("no draft model (--draft gives one): drafting from the text itself, where that pays")
        drafting = [plan for plan in plans if plan.depth and not needs_draft(plan)]
        return (*(drafting or [METHODS["draftless"].plan(max(plan.budget for plan in plans))]), Plan.off())

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
        from specrun.engine import growth_maps

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

    def _exact_up_to(self) -> int:
        """Tokens of a pass up to which these contexts give plain decoding's bits, as measured now."""
        budgets = [plan.budget for plan in self.candidates if plan.depth]
        sizes = sorted({size for size in (2, 4, *budgets) if size <= max(budgets)})
        ctx = max(1, min(_CTX_OF_EXACTNESS, self.ctx_size - sizes[-1] - _PASSES_OF_EXACTNESS))
        n = exact_up_to(self.engine.target, range(1, 32), sizes, ctx, _PASSES_OF_EXACTNESS)
        self.engine.reset()
        return n

    def _keep_to_exact_passes(self, n: int) -> None:
        """Allow no pass over more than `n` tokens."""
        self.engine.target.largest_pass = n
        if n == 1:
            self.notices.append("--exact: decoding plainly, as any larger pass changes a token's last bits here")
            self.candidates = (Plan.off(),)
        elif n < max(plan.budget for plan in self.candidates):
            self.notices.append(f"--exact: passes of at most {n} tokens, larger ones change a token's last bits here")

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

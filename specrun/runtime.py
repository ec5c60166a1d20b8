"""From files and options to a running engine: models loaded, pair checked, contexts made, everything freed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specrun.catalog.pairs import check_pair, check_sizes
from specrun.engine import Engine
from specrun.errors import UsageError
from specrun.llama import DraftContext, LlamaModel, TargetContext, library
from specrun.llama.context import MAX_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama.invariance import exact_up_to
from specrun.settings import UNDECIDED, LlamaSettings
from specrun.speculation import FastestPlan, FixedPlan, Plan, PlanChooser

if TYPE_CHECKING:
    from specrun.tuning.profile import Profile

DEFAULT_CTX_SIZE = 4096
_PROMPT_BATCH = 512  # tokens of one prefill pass, llama.cpp's default ubatch
_MAX_PENDING = 64  # committed tokens that can wait in front of a tree
_MAX_SAFE_CTX_SIZE = 2**24
_CTX_OF_EXACTNESS = 40  # tokens behind which passes are compared
_PASSES_OF_EXACTNESS = 4


@dataclass(frozen=True)
class RuntimeOptions:
    """What to run and where. plans: the one to follow, or several to choose the fastest of while writing.
    largest: another plan that the contexts must hold. ctx_size None: the model's, at most 4096.
    settings, draft_settings: what is decided about running target and draft; the rest is chosen.
    profile: of this pair on this machine; its plans and settings then take the place of `plans` and of what is open.
    exact: speculate only in passes whose logits are the same bits as those of plain decoding.
    """

    target: Path
    draft: Path | None
    plans: tuple[Plan, ...]
    largest: Plan | None = None
    ctx_size: int | None = None
    settings: LlamaSettings = UNDECIDED
    draft_settings: LlamaSettings = UNDECIDED
    profile: Profile | None = None
    exact: bool = False


class Runtime:
    """A loaded pair and its engine; close it, or use it in a `with`, to free everything.

    `candidates` are the plans that can really run, `plans` chooses among them, and `notices` says in sentences where
    they differ from what was asked for.
    Raises ModelFileError, PairError or LlamaError if the files or the machine do not allow it.
    """

    def __init__(self, options: RuntimeOptions) -> None:
        self.notices: list[str] = []
        self._stack = ExitStack()
        try:
            self._load(options)
        except BaseException:
            self.close()
            raise

    def _load(self, options: RuntimeOptions) -> None:
        profile = options.profile
        if profile:
            options = replace(options, settings=options.settings.over(profile.settings))
        self.model = self._stack.enter_context(LlamaModel(options.target, options.settings))
        draft_model = None
        self.candidates = (*profile.candidates(), *options.plans) if profile else options.plans
        if self._may_draft() and options.draft:
            draft_model = self._stack.enter_context(LlamaModel(options.draft, options.draft_settings))
            self._check_pair(draft_model)
            if not (self.model.can_hold_tree and draft_model.can_hold_tree):
                which = "draft" if self.model.can_hold_tree else "target"
                self.notices.append(f"the {which} is recurrent and cannot take tokens back: decoding plainly")
                self.candidates, draft_model = (Plan.off(),), None
        elif self._may_draft():
            self.notices.append("no draft model: decoding plainly (give one with --draft)")
            self.candidates = (Plan.off(),)
        if (options.settings.gpu_layers or options.draft_settings.gpu_layers) and not library.has_gpu():
            self.notices.append("this llama.cpp was built without a GPU backend: all layers stay on the CPU")
        self.ctx_size = self._ctx_size(options)
        target = self._context(self.model, options, options.settings)
        draft = self._context(draft_model, options, options.draft_settings) if draft_model else None
        n_common = min(model.n_vocab for model in (self.model, draft_model or self.model))
        self.engine = Engine(TargetContext(target), DraftContext(draft, n_common) if draft else None, self.ctx_size)
        if options.exact and not profile and draft:
            self._keep_exact_plans()
        self._profile = profile if draft else None
        self.plans = self.chooser()

    def chooser(self) -> PlanChooser:
        """What chooses among `candidates`, knowing nothing yet but the profile."""
        if self._profile:
            return self._profile.chooser()
        return FixedPlan(self.candidates[0]) if len(self.candidates) == 1 else FastestPlan(self.candidates)

    def predicted(self, temperature: float) -> float | None:
        """Tokens a second that the profile promises at `temperature`; None without a profile."""
        return self._profile.at(temperature).predicted_tokens_per_second if self._profile else None

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

    def _may_draft(self) -> bool:
        return any(plan.depth for plan in self.candidates)

    def _check_pair(self, draft: LlamaModel) -> None:
        check_sizes(self.model.n_bytes, draft.n_bytes)
        check_pair(self.model.vocabulary, draft.vocabulary)

    def _ctx_size(self, options: RuntimeOptions) -> int:
        if options.ctx_size is None:
            return default_ctx_size(self.model.n_ctx_train)
        if not 2 <= options.ctx_size <= _MAX_SAFE_CTX_SIZE:
            raise UsageError(f"--ctx-size must be between 2 and {_MAX_SAFE_CTX_SIZE}; got {options.ctx_size}")
        if self.model.n_ctx_train and options.ctx_size > self.model.n_ctx_train:
            self.notices.append(
                f"--ctx-size {options.ctx_size} is beyond the {self.model.n_ctx_train} tokens "
                f"that {self.model.name} was trained for: expect nonsense past them"
            )
        return options.ctx_size

    def _context(self, model: LlamaModel, options: RuntimeOptions, settings: LlamaSettings) -> LlamaContext:
        plans = [*self.candidates, *([options.largest] if options.largest else [])]
        budget = max(plan.budget for plan in plans)
        n_leaves = max(1 if plan.method in ("off", "chain") else plan.budget for plan in plans)
        n_seq_max = min(n_leaves, MAX_SEQUENCES)
        config = ContextConfig(
            n_ctx=self.ctx_size + budget + _MAX_PENDING,
            n_seq_max=n_seq_max,
            n_batch=max(_PROMPT_BATCH, budget + _MAX_PENDING),
            n_outputs=max(budget, n_seq_max),
            settings=settings.over(_cache_types(model, settings)),
        )
        return self._stack.enter_context(LlamaContext(model, config))

    def close(self) -> None:
        """Free contexts, then models. Safe to call twice."""
        self._stack.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def default_ctx_size(n_ctx_train: int) -> int:
    """The context length in tokens where the user gives none."""
    return min(n_ctx_train or DEFAULT_CTX_SIZE, DEFAULT_CTX_SIZE)


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

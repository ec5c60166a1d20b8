"""From files and options to a running engine: models loaded, pair checked, contexts made, everything freed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from specrun.catalog.pairs import check_pair, check_sizes
from specrun.engine import Engine
from specrun.errors import UsageError
from specrun.hardware.cpu import usable_cores
from specrun.llama import DraftContext, LlamaModel, TargetContext, library
from specrun.llama.context import MAX_SEQUENCES, ContextConfig, LlamaContext
from specrun.speculation import FastestPlan, FixedPlan, Plan, PlanChooser

DEFAULT_CTX_SIZE = 4096
_PROMPT_BATCH = 512  # tokens of one prefill pass, llama.cpp's default ubatch
_MAX_PENDING = 64  # committed tokens that can wait in front of a tree
_MAX_SAFE_CTX_SIZE = 2**24


@dataclass(frozen=True)
class RuntimeOptions:
    """What to run and where. plans: the one to follow, or several to choose the fastest of while writing.
    largest: another plan that the contexts must hold. ctx_size None: the model's, at most 4096.
    """

    target: Path
    draft: Path | None
    plans: tuple[Plan, ...]
    largest: Plan | None = None
    ctx_size: int | None = None
    threads: int | None = None
    gpu_layers: int = 0
    gpu_layers_draft: int = 0


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
        self.model = self._stack.enter_context(LlamaModel(options.target, options.gpu_layers))
        draft_model = None
        self.candidates = options.plans
        if self._may_draft() and options.draft:
            draft_model = self._stack.enter_context(LlamaModel(options.draft, options.gpu_layers_draft))
            self._check_pair(draft_model)
            if not (self.model.can_hold_tree and draft_model.can_hold_tree):
                which = "draft" if self.model.can_hold_tree else "target"
                self.notices.append(f"the {which} is recurrent and cannot take tokens back: decoding plainly")
                self.candidates, draft_model = (Plan.off(),), None
        elif self._may_draft():
            self.notices.append("no draft model: decoding plainly (give one with --draft)")
            self.candidates = (Plan.off(),)
        self.plans: PlanChooser = (
            FixedPlan(self.candidates[0]) if len(self.candidates) == 1 else FastestPlan(self.candidates)
        )
        if (options.gpu_layers or options.gpu_layers_draft) and not library.has_gpu():
            self.notices.append("this llama.cpp was built without a GPU backend: all layers stay on the CPU")
        self.ctx_size = self._ctx_size(options)
        target = self._context(self.model, options)
        draft = self._context(draft_model, options) if draft_model else None
        n_common = min(model.n_vocab for model in (self.model, draft_model or self.model))
        self.engine = Engine(TargetContext(target), DraftContext(draft, n_common) if draft else None, self.ctx_size)

    def _may_draft(self) -> bool:
        return any(plan.depth for plan in self.candidates)

    def _check_pair(self, draft: LlamaModel) -> None:
        check_sizes(self.model.n_bytes, draft.n_bytes)
        check_pair(self.model.vocabulary, draft.vocabulary)

    def _ctx_size(self, options: RuntimeOptions) -> int:
        if options.ctx_size is None:
            return min(self.model.n_ctx_train or DEFAULT_CTX_SIZE, DEFAULT_CTX_SIZE)
        if not 2 <= options.ctx_size <= _MAX_SAFE_CTX_SIZE:
            raise UsageError(f"--ctx-size must be between 2 and {_MAX_SAFE_CTX_SIZE}; got {options.ctx_size}")
        if self.model.n_ctx_train and options.ctx_size > self.model.n_ctx_train:
            self.notices.append(
                f"--ctx-size {options.ctx_size} is beyond the {self.model.n_ctx_train} tokens "
                f"that {self.model.name} was trained for: expect nonsense past them"
            )
        return options.ctx_size

    def _context(self, model: LlamaModel, options: RuntimeOptions) -> LlamaContext:
        plans = [*self.candidates, *([options.largest] if options.largest else [])]
        budget = max(plan.budget for plan in plans)
        n_leaves = max(plan.budget if plan.method == "tree" else 1 for plan in plans)
        n_seq_max = min(n_leaves, MAX_SEQUENCES)
        config = ContextConfig(
            n_ctx=self.ctx_size + budget + _MAX_PENDING,
            n_seq_max=n_seq_max,
            n_batch=max(_PROMPT_BATCH, budget + _MAX_PENDING),
            n_outputs=max(budget, n_seq_max),
            n_threads=options.threads or usable_cores(),
        )
        # On the CPU llama.cpp has three flash attention kernels and chooses by the size of the batch as long as K and V
        # have one type. With two types it always takes the same one, so a token's logits are the same bits in any
        # pass; bf16 values lose nothing to f16 here, as they are summed in float32 (docs/exactness.md).
        if not library.has_gpu() and model.allows_two_kv_types:
            config = replace(config, type_v="bf16")
        return self._stack.enter_context(LlamaContext(model, config))

    def close(self) -> None:
        """Free contexts, then models. Safe to call twice."""
        self._stack.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

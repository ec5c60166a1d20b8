"""What a run is asked to do, and the contexts that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specrun.errors import UsageError
from specrun.llama.context import ContextConfig
from specrun.llama_settings import UNDECIDED, LlamaSettings
from specrun.speculation.plan import Plan
from specrun.speculation.shape import MAX_LEAVES

if TYPE_CHECKING:
    from specrun.profiles.profile import Profile

DEFAULT_CTX_SIZE = 4096
_PROMPT_BATCH = 512  # tokens of one prefill pass, llama.cpp's default ubatch
_MAX_PENDING = 64  # committed tokens that can wait in front of a tree
_MAX_SAFE_CTX_SIZE = 2**24


@dataclass(frozen=True)
class RunOptions:
    """What to run and where, as far as it is decided.

    target, draft: model files; draft None drafts from the text itself or not at all.
    plans: the plan to follow, or several to choose the fastest of while writing.
    largest: another plan that the contexts must hold.
    ctx_size: tokens of prompt and answer together; None is what the model was trained for, at most 4096.
    settings, draft_settings: what is decided about running target and draft; specrun chooses the rest.
    profile: that of this pair on this machine. Its settings decide what is open and, with `follow`, its plans are
        followed instead of `plans`.
    exact: speculate only in passes whose logits are the same bits as those of plain decoding.
    datastore, history: further draft sources, see `specrun.engine.run_sources`.
    overlap: draft while the target's passes run; None does as the plan says.
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
    history: bool = False
    overlap: bool | None = None

    @property
    def with_profile(self) -> RunOptions:
        """The same with the profile's settings where they are open, and room for its plans."""
        if not self.profile:
            return self
        settings = self.settings.over(self.profile.settings)
        return replace(
            self, settings=settings, plans=(*(self.profile.candidates() if self.follow else ()), *self.plans)
        )

    @property
    def drafts(self) -> bool:
        """Whether the draft will be loaded: there is one, and a plan that asks it."""
        return self.draft is not None and any(plan.drafts and plan.method.needs_draft for plan in self.plans)

    def context_config(self, plans: Sequence[Plan], n_ctx_train: int) -> ContextConfig:
        """Contexts that `plans` and `largest` can run in. n_ctx_train: see `context_length`."""
        room_for = (*plans, *((self.largest,) if self.largest else ()))
        return context_config(room_for, context_length(self.ctx_size, n_ctx_train))


def context_length(ctx_size: int | None, n_ctx_train: int) -> int:
    """Tokens of text in a context, for a model trained on `n_ctx_train` tokens (0 if its file does not say).

    Raises UsageError for a `ctx_size` that cannot be.
    """
    if ctx_size is None:
        return min(n_ctx_train or DEFAULT_CTX_SIZE, DEFAULT_CTX_SIZE)
    if not 2 <= ctx_size <= _MAX_SAFE_CTX_SIZE:
        raise UsageError(f"--ctx-size must be between 2 and {_MAX_SAFE_CTX_SIZE}; got {ctx_size}")
    return ctx_size


def context_config(plans: Sequence[Plan], ctx_size: int) -> ContextConfig:
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

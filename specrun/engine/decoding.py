"""The decode loop: draft a tree, score it in one target pass, accept, commit; again until something ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from specrun.engine.overlap import Overlap
from specrun.errors import PromptError
from specrun.llama import DraftContext, TargetContext
from specrun.llama.context import Logits
from specrun.sampling import NO_TOKEN, Constraint, Sampler, SamplingParameters
from specrun.speculation import Accepted, PassRecord, Plan, PlanChooser, TokenTree
from specrun.speculation.drafters import DraftLimits
from specrun.speculation.method import DRAFT, Drafting
from specrun.speculation.registry import METHODS, accept, drafter_for
from specrun.speculation.sources.source_set import SourceSet

FinishReason = Literal["stop", "length", "context", "interrupted"]


@dataclass(frozen=True)
class Step:
    """One pass: the tree it scored, what was accepted of it, and the committed tokens. A step that ends the
    generation has `finish`; the tokens of a step that ends with an end-of-generation token leave that token out.
    """

    tree: TokenTree
    accepted: Accepted
    tokens: list[int]
    finish: FinishReason | None = None


@dataclass
class Statistics:
    """What one generation cost. Times in seconds: prefill is all work before the first pass, first_token is from the
    start until the first pass is over, the others count the passes alone. draft: what the target had to wait for;
    overlapped: draft passes that ran while a target pass did. ready: passes whose tree had been drafted ahead.
    """

    prompt_tokens: int = 0
    prompt_tokens_decoded: int = 0
    completion_tokens: int = 0
    passes: int = 0
    prefill_seconds: float = 0.0
    first_token_seconds: float = 0.0
    seconds: float = 0.0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    overlapped_seconds: float = 0.0
    ready: int = 0
    accepted: list[int] = field(default_factory=list)  # passes by accepted length; index 0 is length 1
    # By depth (index 0 is depth 1): passes that got as far as having a child to match there, and those that matched.
    offered: list[int] = field(default_factory=list)
    matched: list[int] = field(default_factory=list)

    @property
    def other_seconds(self) -> float:
        """Time outside llama.cpp's passes: sampling, tree growth, acceptance, cache bookkeeping, printing."""
        return max(self.seconds - self.target_seconds - self.draft_seconds, 0.0)

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens per second after the prefill; 0 before the first pass."""
        return self.completion_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Mean accepted length."""
        return self.completion_tokens / self.passes if self.passes else 0.0

    def count(self, step: Step) -> None:
        """Add one pass."""
        self.passes += 1
        self.completion_tokens += len(step.tokens)
        length = len(step.accepted.tokens)
        self.accepted += [0] * (length - len(self.accepted))
        self.accepted[length - 1] += 1
        while len(self.offered) < step.tree.depth:
            self.offered.append(0)
            self.matched.append(0)
        path = step.accepted.path
        for depth, node in enumerate(path):
            if step.tree.children[node]:
                self.offered[depth] += 1
                self.matched[depth] += depth + 1 < len(path)


class Engine:
    """Writes text with a target and, if there is one, a draft.

    ctx_size: most tokens of prompt and completion together. The contexts have cells for a tree beyond it. sources: that
    need no draft, for plans that ask them. overlap: whether to draft while the target's passes run; None: as the plan
    says.
    Close it before its contexts.
    """

    def __init__(
        self,
        target: TargetContext,
        draft: DraftContext | None,
        ctx_size: int,
        sources: SourceSet | None = None,
        overlap: bool | None = None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.sources = sources
        self.ctx_size = ctx_size
        self.statistics = Statistics()
        self._overlap = Overlap(target, draft) if draft else None
        self._wants_overlap = overlap

    def generate(
        self,
        prompt: list[int],
        sampling: SamplingParameters,
        plans: PlanChooser,
        max_tokens: int | None = None,
        interrupted: Callable[[], bool] = lambda: False,
        ignore_eos: bool = False,
        constraint: Constraint | None = None,
    ) -> Iterator[Step]:
        """Continue `prompt` (token ids), one `Step` per pass; the last one has its `finish` set.

        The tokens depend on prompt, sampling parameters, constraint and target alone, not on `plans`, but for plans
        whose method draws its trees: there only their distribution does. Between two steps the caches are consistent,
        so the iteration may be left at any of them. `interrupted` is asked after every pass; during the prompt it ends
        the generation without any step.
        ignore_eos writes on past end-of-generation tokens, which then count as text.
        constraint: what may be written; where it leaves nothing, the text ends as with an end-of-generation token.
        Raises PromptError if the prompt is empty or leaves no room in the context.
        """
        self._check_prompt(prompt)
        self.statistics = statistics = Statistics(prompt_tokens=len(prompt))
        started = time.perf_counter()
        plans.begin(sampling.temperature)
        sampler = Sampler(sampling, self.target.n_vocab, constraint, len(prompt))
        if self._overlap:
            self._overlap.forget()
        statistics.prompt_tokens_decoded = self.target.set_prompt(prompt, interrupted)
        if self.target.n_cached < len(prompt) - 1:
            return
        if self.draft and plans.current.depth and DRAFT in METHODS[plans.current.method].needs:
            self.draft.start(prompt)
        statistics.prefill_seconds = time.perf_counter() - started

        clock = _Clock(self.target, self.draft, self._overlap)
        finish: FinishReason | None = None
        while finish is None:
            step = self._step(sampler, plans, self._tokens_left(max_tokens), ignore_eos)
            finish = step.finish or self._finish(max_tokens, len(step.tokens))
            if finish is None and interrupted():
                finish = "interrupted"
            step = replace(step, finish=finish)
            statistics.count(step)
            clock.read(statistics)
            if statistics.passes == 1:
                statistics.first_token_seconds = time.perf_counter() - started
            yield step

    def reset(self) -> None:
        """Empty both KV caches."""
        self.target.reset()
        if self.draft:
            self.draft.reset()

    def close(self) -> None:
        """Wait for what still runs. Safe to call twice."""
        if self._overlap:
            self._overlap.close()

    def _check_prompt(self, prompt: list[int]) -> None:
        if not prompt:
            raise PromptError("the prompt is empty; give some text")
        if len(prompt) >= self.ctx_size:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens and the context {self.ctx_size}; "
                f"shorten it or give a larger --ctx-size"
            )

    def _tokens_left(self, max_tokens: int | None) -> int:
        left = self.ctx_size - len(self.target.tokens)
        return left if max_tokens is None else min(left, max_tokens - self.statistics.completion_tokens)

    def _finish(self, max_tokens: int | None, n_new: int) -> FinishReason | None:
        if max_tokens is not None and self.statistics.completion_tokens + n_new >= max_tokens:
            return "length"
        return "context" if len(self.target.tokens) >= self.ctx_size else None

    def _step(self, sampler: Sampler, plans: PlanChooser, tokens_left: int, ignore_eos: bool) -> Step:
        started = time.perf_counter()
        tokens = self.target.tokens
        n_cached = self.target.n_cached
        plan = plans.current
        sources = self._sources_of(plan, sampler)
        drafting = Drafting(plan, sampler, self.draft, plans.guide, sources)
        tree = self._draft_tree(drafting, tokens_left)
        drafted = time.perf_counter()
        rows = self._score(tree, drafting, tokens_left, ignore_eos)
        scored = time.perf_counter()
        accepted = accept(plan, tree, rows, sampler, tokens)
        end = self._first_end(accepted.tokens, ignore_eos)
        if end is not None:
            accepted = accepted.first(end + 1)
        n_target = self.target.n_pending + len(tree)
        if sources:
            sources.learn(tree, rows, accepted)
        self.target.commit(tree, accepted.path, accepted.tokens[-1])
        finished = time.perf_counter()
        plans.record(
            PassRecord(tree, accepted, finished - started, scored - drafted, drafted - started, n_target, n_cached)
        )
        committed = accepted.tokens if end is None else accepted.tokens[:-1]
        return Step(tree, accepted, committed, "stop" if end is not None else None)

    def _limits(self, plan: Plan, tokens_left: int) -> DraftLimits:
        return DraftLimits(
            budget=min(plan.budget, self.target.room()),
            depth=min(plan.depth, tokens_left - 1),
            width=plan.width,
            leaves=self.target.max_leaves,
            pending=self.target.n_pending,
        )

    def _draft_tree(self, drafting: Drafting, tokens_left: int) -> TokenTree:
        limits = self._limits(drafting.plan, tokens_left)
        if limits.depth >= 1 and limits.budget >= 2:
            if self._overlap and (ready := self._overlap.take(drafting.plan, limits)):
                self.statistics.ready += 1
                return ready
            if drafter := drafter_for(drafting):
                return drafter.draft(self.target.tokens, limits)
        return TokenTree.root_only(self.target.tokens[-1])

    def _score(self, tree: TokenTree, drafting: Drafting, tokens_left: int, ignore_eos: bool) -> Logits:
        """The target's pass; meanwhile the next tree may be drafted."""
        wanted = drafting.plan.overlap if self._wants_overlap is None else self._wants_overlap
        if not (wanted and self._overlap and METHODS[drafting.plan.method].can_overlap):
            return self.target.score(tree)
        limits = self._limits(drafting.plan, tokens_left)

        def limits_behind(n_tokens: int) -> DraftLimits:
            return replace(limits, depth=min(drafting.plan.depth, tokens_left - n_tokens - 1))

        def ends_text(token: int) -> bool:
            return not ignore_eos and self.target.context.model.is_end_of_generation(token)

        return self._overlap.score(tree, drafting, limits_behind, ends_text)

    def _sources_of(self, plan: Plan, sampler: Sampler) -> SourceSet | None:
        """The draft sources that the plan's method asks, brought to the committed text."""
        names = METHODS[plan.method].sources
        if self.sources is None or not names:
            return None
        permitted = sampler.permitted if sampler.is_constrained else None
        self.sources.follow(self.target.tokens, names, permitted)
        return self.sources

    def _first_end(self, tokens: list[int], ignore_eos: bool) -> int | None:
        is_end = self.target.context.model.is_end_of_generation
        return next((i for i, t in enumerate(tokens) if t == NO_TOKEN or (not ignore_eos and is_end(t))), None)


class _Clock:
    """Splits the time since its making into target passes, draft passes and everything else."""

    def __init__(self, target: TargetContext, draft: DraftContext | None, overlap: Overlap | None) -> None:
        self._started = time.perf_counter()
        self._target = target.context
        self._draft = draft.context if draft else None
        self._target_before = self._target.decode_seconds
        self._draft_before = self._draft.decode_seconds if self._draft else 0.0
        self._overlap = overlap
        self._overlapped_before = overlap.seconds if overlap else 0.0

    def read(self, statistics: Statistics) -> None:
        statistics.seconds = time.perf_counter() - self._started
        statistics.target_seconds = self._target.decode_seconds - self._target_before
        if self._draft and self._overlap:
            statistics.overlapped_seconds = self._overlap.seconds - self._overlapped_before
            drafted = self._draft.decode_seconds - self._draft_before
            statistics.draft_seconds = drafted - statistics.overlapped_seconds

"""The passes of one text: draft a token tree, let the target score it, accept a path, commit its tokens, and repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specrun.engine.request import Request
from specrun.engine.statistics import Clock, FinishReason, Pass, Statistics
from specrun.errors import PromptError
from specrun.llama.context import Logits
from specrun.sampling import NO_TOKEN, Constraint, Sampler
from specrun.sampling.logprobs import TokenLogprob, logprob
from specrun.speculation.accept import accept
from specrun.speculation.controllers.chooser import PlanChooser
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import Drafting
from specrun.speculation.plan import Plan
from specrun.speculation.planning.guide import Drafted
from specrun.speculation.record import PassRecord
from specrun.speculation.sources.source_set import SourceSet
from specrun.speculation.tree import TokenTree, n_in_order

if TYPE_CHECKING:
    from specrun.engine.decoding import Engine


@dataclass(frozen=True)
class Proposal:
    """A tree that waits for the target's pass.

    drafting, limits, sources: what it was drafted with.
    drafted: how, for the guide; None without one.
    seconds: that this took.
    n_target: tokens that the pass has of this text: the tree and pending ones, and padding if it is alone.
    """

    tree: TokenTree
    drafting: Drafting
    limits: DraftLimits
    sources: SourceSet | None
    drafted: Drafted | None
    seconds: float
    n_target: int

    def with_nodes(self, n: int) -> Proposal:
        """The same with the `n` likeliest nodes of the tree, root included."""
        if n >= len(self.tree):
            return self
        tree = self.tree.limited(n, self.limits.leaves)
        return replace(self, tree=tree, n_target=self.n_target - len(self.tree) + len(tree))


class Generation:
    """The passes of one text. Iterate over it once; its `statistics` are complete when the iteration ends.

    The iteration may be abandoned after any pass: between two passes both KV caches are consistent.

    A text that may share passes with others goes on step by step instead: `begin`, then `read` as long as `is_reading`,
    then, until it `is_over`, `next_pass` where it is alone, or `propose` and `take` around a pass of several texts
    (`engine.together`).

    target: the target with this text.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        plans: PlanChooser,
        constraint: Constraint | None,
        interrupted: Callable[[], bool],
    ) -> None:
        self.statistics = Statistics(prompt_tokens=len(request.prompt))
        self.target = engine.target
        self.is_over = False
        self._engine = engine
        self._request = request
        self._plans = plans
        self._interrupted = interrupted
        self._sampler = Sampler(request.sampling, engine.target.n_vocab, constraint, len(request.prompt))
        self._clock: Clock | None = None  # from the first pass on
        self._started = 0.0
        self._reading_seconds = 0.0

    def __iter__(self) -> Iterator[Pass]:
        """Yield one `Pass` after the other; the last one has its `finish` set.

        `interrupted` is called after every pass. If it returns True while the prompt is read, there is no pass at all.
        Raises PromptError if the prompt is empty or leaves no room in the context.
        """
        self.begin()
        while self.is_reading:
            if self._interrupted():
                return
            self.read()
        while not self.is_over:
            yield self.next_pass()

    @property
    def plans(self) -> PlanChooser:
        """What chooses the plans, set to this text's temperature."""
        self._plans.begin(self._request.sampling.temperature)
        return self._plans

    @property
    def is_reading(self) -> bool:
        """Whether portions of the prompt are left to be read."""
        return self.target.n_portion > 0

    @property
    def n_next(self) -> int:
        """Cells that the next portion of the prompt needs at most, with padding."""
        n = self.target.n_portion
        return self.target.padding.padded(n) if n else 0

    def begin(self) -> None:
        """Let the target take up the prompt. Raises PromptError if it is empty or leaves no room in the context."""
        n_prompt, ctx_size = len(self._request.prompt), self._engine.ctx_size
        if n_prompt == 0:
            raise PromptError("the prompt is empty; give some text")
        if n_prompt >= ctx_size:
            raise PromptError(
                f"the prompt has {n_prompt} tokens and the context {ctx_size}; shorten it or give a larger --ctx-size"
            )
        if self._engine.overlap:
            self._engine.overlap.forget()
        self._started = time.perf_counter()
        self.statistics.prompt_tokens_decoded = self.target.begin_prompt(self._request.prompt)

    def read(self) -> None:
        """Read the next portion of the prompt."""
        started = time.perf_counter()
        self.target.read_portion()
        self.has_read(time.perf_counter() - started)

    def has_read(self, seconds: float) -> None:
        """Note how long a portion of the prompt took."""
        self._reading_seconds += seconds

    def next_pass(self) -> Pass:
        """A pass over this text alone."""
        if self._clock is None:
            self._begin_passes(reads_for_draft=True)
        plans = self.plans
        started, n_cached = time.perf_counter(), self.target.n_cached
        proposal = self.propose(plans.current)
        drafted = time.perf_counter()
        rows = self._score(proposal)
        scored = time.perf_counter()
        done = self.take(proposal, rows)
        seconds = time.perf_counter() - started
        times = (seconds, scored - drafted, drafted - started)
        plans.record(PassRecord(done.tree, done.accepted, *times, proposal.n_target, n_cached))
        return done

    def _begin_passes(self, reads_for_draft: bool) -> None:
        """The prompt is read. reads_for_draft: whether the draft shall read it now, and not when it first drafts."""
        plans, statistics, draft = self.plans, self.statistics, self._engine.draft
        plans.read_prompt(statistics.prompt_tokens_decoded, self._reading_seconds)
        if reads_for_draft and draft and plans.needs_draft and self.target.has_states:
            draft.start(self._request.prompt)
        statistics.prefill_seconds = time.perf_counter() - self._started
        self._clock = Clock(self.target, draft, self._engine.overlap)

    def propose(self, plan: Plan, budget: int | None = None) -> Proposal:
        """The tree that `plan` drafts. budget: most nodes, where other texts share the pass."""
        if self._clock is None:
            self._begin_passes(reads_for_draft=False)
        started = time.perf_counter()
        limits = self._limits(plan)
        if budget is not None:
            limits = replace(limits, budget=min(limits.budget, budget))
        sources = self._sources_of(plan)
        drafting = self._drafting(plan, sources)
        tree = self._draft_tree(drafting, limits, is_alone=budget is None)
        drafted = drafting.guide.drafted if drafting.guide else None
        seconds = time.perf_counter() - started
        n_target = self.target.pass_size(tree) if budget is None else self.target.n_pending + len(tree)
        return Proposal(tree, drafting, limits, sources, drafted, seconds, n_target)

    def take(self, proposal: Proposal, rows: Logits) -> Pass:
        """Accept and commit, by the target's logits for the tree that was proposed (see `TargetContext.score`)."""
        target, tree, sources = self.target, proposal.tree, proposal.sources
        accepted = accept(proposal.drafting.plan, tree, rows, self._sampler, target.tokens)
        if target.padding.in_order:
            accepted = accepted.first(n_in_order(accepted.path))
        end = next((i for i, token in enumerate(accepted.tokens) if token == NO_TOKEN or self._ends_text(token)), None)
        if end is not None:
            accepted = accepted.first(end + 1)
        committed = accepted.tokens if end is None else accepted.tokens[:-1]
        logprobs = self._logprobs(rows, accepted.path, committed)
        padding = proposal.n_target - target.n_pending - len(tree)
        if sources:
            sources.learn(tree, rows, accepted)
        target.commit(tree, accepted.path, accepted.tokens[-1])
        finish = "stop" if end is not None else self._finish(len(committed))
        if finish is None and self._interrupted():
            finish = "interrupted"
        self.is_over = finish is not None
        return self._counted(Pass(tree, accepted, committed, finish, padding, logprobs))

    def _counted(self, done: Pass) -> Pass:
        assert self._clock
        statistics = self.statistics
        statistics.count(done)
        self._clock.read(statistics)
        if statistics.passes == 1:
            statistics.first_token_seconds = time.perf_counter() - self._started
        return done

    def _tokens_left(self) -> int:
        left, max_tokens = self._engine.ctx_size - len(self.target.tokens), self._request.max_tokens
        return left if max_tokens is None else min(left, max_tokens - self.statistics.completion_tokens)

    def _finish(self, n_new: int) -> FinishReason | None:
        max_tokens = self._request.max_tokens
        if max_tokens is not None and self.statistics.completion_tokens + n_new >= max_tokens:
            return "length"
        return "context" if len(self.target.tokens) >= self._engine.ctx_size else None

    def _logprobs(self, rows: Logits, path: list[int], tokens: list[int]) -> tuple[TokenLogprob, ...]:
        """Those of `tokens`, which were chosen at the nodes of `path`, if the request asks for any."""
        n_top = self._request.logprobs
        if n_top is None:
            return ()
        return tuple(logprob(rows[node], token, n_top) for node, token in zip(path, tokens, strict=False))

    def _limits(self, plan: Plan) -> DraftLimits:
        return DraftLimits(
            budget=min(plan.budget, self.target.room()),
            depth=min(plan.depth, self._tokens_left() - 1),
            width=plan.width,
            leaves=self.target.max_leaves,
            pending=self.target.n_pending,
        )

    def _drafting(self, plan: Plan, sources: SourceSet | None) -> Drafting:
        draft = self._engine.draft
        candidates = ModelCandidates(draft, self._sampler) if draft else None
        return Drafting(plan, self._request.sampling.temperature, candidates, self._plans.guide, sources)

    def _draft_tree(self, drafting: Drafting, limits: DraftLimits, is_alone: bool) -> TokenTree:
        # The end of a prompt may wait for the first pass, which then also gives a head the states that it lacks.
        can_draft = self.target.has_states or not drafting.plan.method.needs_draft
        if limits.depth >= 1 and limits.budget >= 2 and can_draft:
            overlap = self._engine.overlap
            if is_alone and overlap and (ready := overlap.take(drafting.plan, limits)):
                self.statistics.ready += 1
                return ready
            if drafter := drafting.drafter():
                return drafter.draft(self.target.tokens, limits)
        return TokenTree.root_only(self.target.tokens[-1])

    def _score(self, proposal: Proposal) -> Logits:
        """The target's logits for the tree, from one pass. With overlap, the next trees are drafted meanwhile."""
        tree, plan, limits, overlap = proposal.tree, proposal.drafting.plan, proposal.limits, self._engine.overlap
        wants_overlap = plan.overlap if self._engine.wants_overlap is None else self._engine.wants_overlap
        if not (wants_overlap and overlap and plan.method.can_overlap):
            return self.target.score(tree)
        tokens_left = self._tokens_left()

        def limits_behind(n_tokens: int) -> DraftLimits:
            return replace(limits, depth=min(plan.depth, tokens_left - n_tokens - 1))

        return overlap.score(tree, proposal.drafting, self._sampler, limits_behind, self._ends_text)

    def _sources_of(self, plan: Plan) -> SourceSet | None:
        """The draft sources with the committed text added, or None if the plan's method uses none."""
        sources, names = self._engine.sources, plan.method.sources
        if sources is None or not names:
            return None
        permitted = self._sampler.permitted if self._sampler.is_constrained else None
        sources.follow(self.target.tokens, names, permitted, self._sampler.noise)
        return sources

    def _ends_text(self, token: int) -> bool:
        return not self._request.ignore_eos and self.target.context.model.is_end_of_generation(token)

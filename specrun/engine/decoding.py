"""The decode loop: draft a token tree, score it in one target pass, accept a path, commit its tokens, and repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from specrun.engine.overlap import Overlap
from specrun.engine.request import Request
from specrun.engine.statistics import Clock, FinishReason, Pass, Statistics
from specrun.errors import PromptError
from specrun.interrupts import never
from specrun.llama import AnyDraft, DraftContext, TargetContext
from specrun.llama.context import Logits
from specrun.sampling import NO_TOKEN, Constraint, Sampler
from specrun.sampling.logprobs import TokenLogprob, logprob
from specrun.speculation.accept import accept
from specrun.speculation.controllers.chooser import PlanChooser
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import Drafting
from specrun.speculation.plan import Plan
from specrun.speculation.record import PassRecord
from specrun.speculation.sources.source_set import SourceSet
from specrun.speculation.tree import ROOT, TokenTree, n_in_order


class Engine:
    """Writes texts, one at a time. Close it before its contexts.

    target: the target's context.
    draft: the draft's context; None without a draft model.
    ctx_size: most tokens of prompt and completion together. The contexts have further cells for a tree.
    sources: the draft sources, for methods that use them.
    overlap: whether to draft while the target's passes run; None does as the plan says.
    """

    def __init__(
        self,
        target: TargetContext,
        draft: AnyDraft | None,
        ctx_size: int,
        sources: SourceSet | None = None,
        overlap: bool | None = None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.sources = sources
        self.ctx_size = ctx_size
        # Drafting ahead goes back and forth between texts, for which a recurrent draft keeps too few states. And a head
        # needs the states that the pass gives.
        self.overlap = Overlap(target, draft) if isinstance(draft, DraftContext) else None
        self.wants_overlap = overlap

    def generate(
        self,
        request: Request,
        plans: PlanChooser,
        constraint: Constraint | None = None,
        interrupted: Callable[[], bool] = never,
    ) -> Generation:
        """The passes that continue the request's prompt.

        The tokens depend only on the request, the constraint and the target, not on `plans`. (With methods that draw
        their trees at random, only the distribution of the tokens is the same.) Where the constraint allows no token,
        the text ends.
        """
        return Generation(self, request, plans, constraint, interrupted)

    def read_for_draft(self, tokens: Sequence[int]) -> None:
        """Give the draft what it needs to draft anywhere along a text that the target did not write just now.

        A head needs the target's hidden states, for which the target reads the text. A draft model needs nothing. The
        target's cache may be empty afterwards.
        """
        target = self.target
        if target.states:
            target.set_prompt(list(tokens))
            if not target.has_states:
                tree = TokenTree.root_only(tokens[-1])
                target.score(tree)
                target.commit(tree, [ROOT], tokens[-1])
            target.reset()

    def reset(self) -> None:
        """Empty both KV caches."""
        self.target.reset()
        if self.draft:
            self.draft.reset()

    def close(self) -> None:
        """Wait for a pass that is still running. Safe to call twice."""
        if self.overlap:
            self.overlap.close()


class Generation:
    """The passes of one text. Iterate over it once; its `statistics` are complete when the iteration ends.

    The iteration may be abandoned after any pass: between two passes both KV caches are consistent.
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
        self._engine = engine
        self._target = engine.target
        self._request = request
        self._plans = plans
        self._interrupted = interrupted
        self._sampler = Sampler(request.sampling, engine.target.n_vocab, constraint, len(request.prompt))

    def __iter__(self) -> Iterator[Pass]:
        """Yield one `Pass` after the other; the last one has its `finish` set.

        `interrupted` is called after every pass. If it returns True while the prompt is read, there is no pass at all.
        Raises PromptError if the prompt is empty or leaves no room in the context.
        """
        self._check_prompt()
        statistics = self.statistics
        started = time.perf_counter()
        if not self._read_prompt():
            return
        statistics.prefill_seconds = time.perf_counter() - started
        clock = Clock(self._target, self._engine.draft, self._engine.overlap)
        finish: FinishReason | None = None
        while finish is None:
            done = self._pass()
            finish = done.finish or self._finish(len(done.tokens))
            if finish is None and self._interrupted():
                finish = "interrupted"
            done = replace(done, finish=finish)
            statistics.count(done)
            clock.read(statistics)
            if statistics.passes == 1:
                statistics.first_token_seconds = time.perf_counter() - started
            yield done

    def _check_prompt(self) -> None:
        n_prompt, ctx_size = len(self._request.prompt), self._engine.ctx_size
        if n_prompt == 0:
            raise PromptError("the prompt is empty; give some text")
        if n_prompt >= ctx_size:
            raise PromptError(
                f"the prompt has {n_prompt} tokens and the context {ctx_size}; shorten it or give a larger --ctx-size"
            )

    def _read_prompt(self) -> bool:
        """Bring the prompt into the KV caches; returns False if that was interrupted."""
        prompt, draft = self._request.prompt, self._engine.draft
        self._plans.begin(self._request.sampling.temperature)
        if self._engine.overlap:
            self._engine.overlap.forget()
        started = time.perf_counter()
        n_decoded = self.statistics.prompt_tokens_decoded = self._target.set_prompt(prompt, self._interrupted)
        if not self._target.has_read_prompt:
            return False
        self._plans.read_prompt(n_decoded, time.perf_counter() - started)
        if draft and self._plans.needs_draft and self._target.has_states:
            draft.start(prompt)
        return True

    def _tokens_left(self) -> int:
        left, max_tokens = self._engine.ctx_size - len(self._target.tokens), self._request.max_tokens
        return left if max_tokens is None else min(left, max_tokens - self.statistics.completion_tokens)

    def _finish(self, n_new: int) -> FinishReason | None:
        max_tokens = self._request.max_tokens
        if max_tokens is not None and self.statistics.completion_tokens + n_new >= max_tokens:
            return "length"
        return "context" if len(self._target.tokens) >= self._engine.ctx_size else None

    def _pass(self) -> Pass:
        started = time.perf_counter()
        target, plan = self._target, self._plans.current
        tokens, n_cached = target.tokens, target.n_cached
        limits = self._limits(plan)
        sources = self._sources_of(plan)
        drafting = self._drafting(plan, sources)
        tree = self._draft_tree(drafting, limits)
        drafted = time.perf_counter()
        rows = self._score(tree, drafting, limits)
        scored = time.perf_counter()
        accepted = accept(plan, tree, rows, self._sampler, tokens)
        if target.padding.in_order:
            accepted = accepted.first(n_in_order(accepted.path))
        end = next((i for i, token in enumerate(accepted.tokens) if token == NO_TOKEN or self._ends_text(token)), None)
        if end is not None:
            accepted = accepted.first(end + 1)
        committed = accepted.tokens if end is None else accepted.tokens[:-1]
        logprobs = self._logprobs(rows, accepted.path, committed)
        n_target = target.pass_size(tree)
        padding = n_target - target.n_pending - len(tree)
        if sources:
            sources.learn(tree, rows, accepted)
        target.commit(tree, accepted.path, accepted.tokens[-1])
        seconds = time.perf_counter() - started
        self._plans.record(PassRecord(tree, accepted, seconds, scored - drafted, drafted - started, n_target, n_cached))
        return Pass(tree, accepted, committed, "stop" if end is not None else None, padding, logprobs)

    def _logprobs(self, rows: Logits, path: list[int], tokens: list[int]) -> tuple[TokenLogprob, ...]:
        """Those of `tokens`, which were chosen at the nodes of `path`, if the request asks for any."""
        n_top = self._request.logprobs
        if n_top is None:
            return ()
        return tuple(logprob(rows[node], token, n_top) for node, token in zip(path, tokens, strict=False))

    def _limits(self, plan: Plan) -> DraftLimits:
        return DraftLimits(
            budget=min(plan.budget, self._target.room()),
            depth=min(plan.depth, self._tokens_left() - 1),
            width=plan.width,
            leaves=self._target.max_leaves,
            pending=self._target.n_pending,
        )

    def _drafting(self, plan: Plan, sources: SourceSet | None) -> Drafting:
        draft = self._engine.draft
        candidates = ModelCandidates(draft, self._sampler) if draft else None
        return Drafting(plan, self._request.sampling.temperature, candidates, self._plans.guide, sources)

    def _draft_tree(self, drafting: Drafting, limits: DraftLimits) -> TokenTree:
        # The end of a prompt may wait for the first pass, which then also gives a head the states that it lacks.
        can_draft = self._target.has_states or not drafting.plan.method.needs_draft
        if limits.depth >= 1 and limits.budget >= 2 and can_draft:
            overlap = self._engine.overlap
            if overlap and (ready := overlap.take(drafting.plan, limits)):
                self.statistics.ready += 1
                return ready
            if drafter := drafting.drafter():
                return drafter.draft(self._target.tokens, limits)
        return TokenTree.root_only(self._target.tokens[-1])

    def _score(self, tree: TokenTree, drafting: Drafting, limits: DraftLimits) -> Logits:
        """The target's logits for the tree, from one pass. With overlap, the next trees are drafted meanwhile."""
        plan, overlap = drafting.plan, self._engine.overlap
        wants_overlap = plan.overlap if self._engine.wants_overlap is None else self._engine.wants_overlap
        if not (wants_overlap and overlap and plan.method.can_overlap):
            return self._target.score(tree)
        tokens_left = self._tokens_left()

        def limits_behind(n_tokens: int) -> DraftLimits:
            return replace(limits, depth=min(plan.depth, tokens_left - n_tokens - 1))

        return overlap.score(tree, drafting, self._sampler, limits_behind, self._ends_text)

    def _sources_of(self, plan: Plan) -> SourceSet | None:
        """The draft sources with the committed text added, or None if the plan's method uses none."""
        sources, names = self._engine.sources, plan.method.sources
        if sources is None or not names:
            return None
        permitted = self._sampler.permitted if self._sampler.is_constrained else None
        sources.follow(self._target.tokens, names, permitted, self._sampler.noise)
        return sources

    def _ends_text(self, token: int) -> bool:
        return not self._request.ignore_eos and self._target.context.model.is_end_of_generation(token)

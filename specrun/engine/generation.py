"""One text that is being written: its prompt, its part in each step, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field

from specrun import clock
from specrun.engine.engine import Engine
from specrun.engine.prompt_states import PromptStates
from specrun.engine.request import Request
from specrun.engine.statistics import Clock, FinishReason, Pass, Statistics
from specrun.errors import PromptError
from specrun.interrupts import never
from specrun.llama.context import Logits
from specrun.sampling import NO_TOKEN, Constraint, Sampler
from specrun.sampling.sampler import TokenLogprob, logprob
from specrun.speculation.accept import Accepted, accept
from specrun.speculation.controllers.chooser import PlanChooser
from specrun.speculation.drafter import Draft, Drafter, DraftLimits
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import Drafting, Plan
from specrun.speculation.planning.guide import Guide
from specrun.speculation.sources.source_set import SourceSet
from specrun.speculation.tree import TokenTree


@dataclass(eq=False)
class Generation:
    """One text. `passes.write_alone` writes it alone; `passes.Passes` writes several texts in the same passes.

    The tokens depend only on the request, the constraint and the target, not on the plans. (With methods that draw
    their trees at random, only the distribution of the tokens is the same.) Where the constraint allows no token, the
    text ends.
    """

    engine: Engine
    request: Request
    plans: PlanChooser
    constraint: InitVar[Constraint | None] = None
    interrupted: Callable[[], bool] = never  # asked after every pass whether the text shall end
    is_over: bool = field(default=False, init=False)  # whether no pass follows
    _clock: Clock | None = field(default=None, init=False)  # from the first pass on
    _started: float = field(default=0.0, init=False)

    def __post_init__(self, constraint: Constraint | None) -> None:
        request, self.target = self.request, self.engine.target
        self.statistics = Statistics(prompt_tokens=len(request.prompt))  # complete when the text is over
        self.sampler = Sampler(request.sampling, self.target.n_vocab, constraint, len(request.prompt))

    @property
    def is_reading(self) -> bool:
        """Whether portions of the prompt are left to be read."""
        return self.target.n_portion > 0

    @property
    def n_next(self) -> int:
        """Cells that the next portion of the prompt needs at most, with padding."""
        n = self.target.n_portion
        return self.target.padding.padded(n) if n else 0

    @property
    def n_needed(self) -> int:
        """Tokens that the next pass has of this text at least: the pending ones and the root."""
        return self.target.n_pending + 1

    def begin(self, states: PromptStates | None = None) -> None:
        """Let the target take up the prompt, with what `states` has of it.

        Raises PromptError if it is empty or leaves no room in the context.
        """
        n_prompt, ctx_size = len(self.request.prompt), self.engine.ctx_size
        if n_prompt == 0:
            raise PromptError("the prompt is empty; give some text")
        if n_prompt >= ctx_size:
            raise PromptError(
                f"the prompt has {n_prompt} tokens and the context {ctx_size}; shorten it or give a larger --ctx-size"
            )
        self._started = clock.now()
        prompt, target = self.request.prompt, self.target
        if states is None:
            self.statistics.prompt_tokens_decoded = target.begin_prompt(prompt)
            return
        self.statistics.from_disk = found = states.take_up(self.engine, prompt)
        n_decoded = target.begin_prompt(prompt, found.parts_at, lambda: states.keep_beginning(self.engine))
        self.statistics.prompt_tokens_decoded = n_decoded

    def has_read(self, seconds: float) -> None:
        """Note how long a portion of the prompt took."""
        self.statistics.reading_seconds += seconds

    def begin_passes(self, is_alone: bool) -> None:
        """Before the first pass, when the prompt is read: start the clock. Later calls change nothing.

        is_alone: whether the draft, if it is needed, reads the prompt now, and not when it first drafts.
        """
        if self._clock:
            return
        plans, statistics, draft = self.plans, self.statistics, self.engine.draft
        n_unread = draft.n_unread(self.request.prompt) if draft else 0
        plans.read_prompt(statistics.prompt_tokens_decoded, statistics.reading_seconds, n_unread)
        if is_alone and draft and plans.needs_draft and self.target.has_states:
            draft.start(self.request.prompt)
        statistics.prefill_seconds = clock.now() - self._started
        self._clock = Clock(self.engine)

    def draft(self, plan: Plan) -> Turn:
        """This text's part in the next step, with the tree that `plan` drafts where the text is alone."""
        turn = self.turn(plan)
        turn.grow()
        return turn

    def turn(self, plan: Plan, budget: int | None = None, guide: Guide | None = None) -> Turn:
        """The same, but the tree, of which there is only the root, is still to be grown.

        budget: most nodes, where other texts share the pass; None where the text is alone.
        guide: pass times of a shared pass; None for those of the text alone.
        """
        if not plan.drafts:  # a plain pass may take less than a millisecond
            return self._plain_turn(plan)
        started = clock.now()
        room = self.target.room()
        limits = DraftLimits(
            budget=min(plan.budget, room if budget is None else min(room, budget)),
            depth=min(plan.depth, self.tokens_left - 1),
            width=plan.width,
            leaves=self.target.max_leaves,
            pending=self.target.n_pending,
        )
        sources, draft = self._sources_of(plan), self.engine.draft
        candidates = ModelCandidates(draft, self.sampler) if draft else None
        drafting = Drafting(plan, self.request.sampling.temperature, candidates, guide or self.plans.guide, sources)
        has_room = limits.depth >= 1 and limits.budget >= 2
        # The end of a prompt may wait for the first pass, which then also gives a head the states that it lacks.
        can_draft = has_room and (self.target.has_states or not plan.method.needs_draft)
        turn = Turn(self, drafting, limits, sources, drafting.drafter() if can_draft else None)
        turn.draft = Draft(TokenTree.root_only(self.target.tokens[-1]))
        turn.draft_seconds = clock.now() - started
        return turn

    def _plain_turn(self, plan: Plan) -> Turn:
        target = self.target
        drafting = Drafting(plan, self.request.sampling.temperature)
        turn = Turn(self, drafting, DraftLimits(1, 0, 1, target.max_leaves, target.n_pending), None)
        turn.draft = Draft(TokenTree.root_only(target.tokens[-1]))
        return turn

    def done(self, turn: Turn, padding: int) -> Pass:
        """Count the pass in which the step was made. padding: tokens of padding in it."""
        accepted = turn.accepted
        is_stop = self.ends_text(accepted.tokens[-1])
        tokens = accepted.tokens[:-1] if is_stop else accepted.tokens
        finish = "stop" if is_stop else self._finish(len(tokens))
        if finish is None and self.interrupted():
            finish = "interrupted"
        self.is_over = finish is not None
        done = Pass(turn.draft.tree, accepted, tokens, finish, padding, self._logprobs(turn, tokens))
        assert self._clock
        self.statistics.count(done)
        self._clock.read(self.statistics)
        if self.statistics.passes == 1:
            self.statistics.first_token_seconds = clock.now() - self._started
        return done

    def ends_text(self, token: int) -> bool:
        """Whether the text ends with this token."""
        return token == NO_TOKEN or (
            not self.request.ignore_eos and self.target.context.model.is_end_of_generation(token)
        )

    @property
    def tokens_left(self) -> int:
        """Tokens that may still be written."""
        left, max_tokens = self.engine.ctx_size - len(self.target.tokens), self.request.max_tokens
        return left if max_tokens is None else min(left, max_tokens - self.statistics.completion_tokens)

    def _sources_of(self, plan: Plan) -> SourceSet | None:
        """The draft sources with the committed text added, or None if the plan's method uses none."""
        sources, names = self.engine.sources, plan.method.sources
        if sources is None or not names:
            return None
        permitted = self.sampler.permitted if self.sampler.is_constrained else None
        sources.follow(self.target.tokens, names, permitted, self.sampler.noise)
        return sources

    def _finish(self, n_new: int) -> FinishReason | None:
        max_tokens = self.request.max_tokens
        if max_tokens is not None and self.statistics.completion_tokens + n_new >= max_tokens:
            return "length"
        return "context" if len(self.target.tokens) >= self.engine.ctx_size else None

    def _logprobs(self, turn: Turn, tokens: list[int]) -> tuple[TokenLogprob, ...]:
        """The log-probabilities of `tokens`, which were chosen along the accepted path, if the request asks for any."""
        n_top = self.request.logprobs
        if n_top is None:
            return ()
        along = zip(turn.accepted.path, tokens, strict=False)
        return tuple(logprob(turn.rows[node], token, n_top) for node, token in along)


@dataclass
class Turn:
    """One text's part in a step, filled in from drafting to acceptance."""

    text: Generation
    drafting: Drafting  # what its tree is drafted from
    limits: DraftLimits
    sources: SourceSet | None  # the draft sources in use
    drafter: Drafter | None = None  # None where nothing is drafted
    draft_seconds: float = 0.0
    draft_reading_seconds: float = 0.0  # of these, those in which the draft read prompts of texts that share a pass
    draft: Draft = field(init=False)
    rows: Logits = field(init=False)  # float32[len(tree), n_vocab], the target's, which the next pass overwrites
    accepted: Accepted = field(init=False)  # up to the end of the text

    @property
    def n_tokens(self) -> int:
        """Tokens that the pass has of this text, without padding."""
        return self.limits.pending + len(self.draft.tree)

    def grow(self) -> None:
        """Grow the tree, in draft passes of its own."""
        if self.drafter:
            started = clock.now()
            self.draft = self.drafter.draft(self.text.target.tokens, self.limits)
            self.draft_seconds += clock.now() - started

    def keep_nodes(self, n: int) -> None:
        """Keep the `n` likeliest nodes of the tree, root included."""
        if n < len(self.draft.tree):
            self.draft = self.draft.limited(n, self.limits.leaves)

    def accept(self, rows: Logits) -> None:
        """Accept a path of the tree by the target's logits, up to the end of the text."""
        target, rule = self.text.target, self.drafting.plan.method.rule
        self.rows = rows
        accepted = accept(rule, self.draft, rows, self.text.sampler, target.tokens)
        n_exact = target.n_exact(accepted.path, len(target.tokens) - 1)
        accepted = accepted.first(n_exact) if n_exact < len(accepted.path) else accepted
        ends = (i for i, token in enumerate(accepted.tokens, start=1) if self.text.ends_text(token))
        self.accepted = accepted.first(next(ends, len(accepted.tokens)))

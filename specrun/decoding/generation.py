"""A request for text, and the text that is written for it: its prompt, its part in each step, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial

from specrun import clock
from specrun.constraints import read_grammar, source_of
from specrun.constraints.rules import Trigger
from specrun.decoding import prompt_states
from specrun.decoding.engine import Engine
from specrun.decoding.prompt_states import PromptStates
from specrun.decoding.statistics import FinishReason, Statistics, spent
from specrun.errors import PromptError, UsageError
from specrun.interrupts import never
from specrun.llama.context import Logits
from specrun.llama.grammar import check_grammar
from specrun.options.sampling_options import SamplingOptions, sampling_parameters, settled_max_tokens
from specrun.sampling import NO_TOKEN, Constraint, Sampler, SamplingParameters
from specrun.sampling.sampler import TokenLogprob, logprob
from specrun.speculation.accept import accept
from specrun.speculation.controllers.chooser import PlanChooser
from specrun.speculation.drafter import Draft, Drafter, DraftLimits
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import Drafting, Plan
from specrun.speculation.planning.guide import Guide, PassRecord
from specrun.speculation.sources.source_set import SourceSet
from specrun.speculation.tree import TokenTree


@dataclass(frozen=True)
class Request:
    """What to write: the single value that goes from the command line or the Python API down to the decode loop."""

    prompt: list[int] = field(default_factory=list)  # token ids to continue
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    max_tokens: int | None = None  # most tokens to write; None is no limit
    stops: tuple[str, ...] = ()  # the answer ends before the first of these texts
    gbnf: str | None = None  # the grammar that the answer must match; None allows every text
    trigger: Trigger | None = None  # where in the answer the grammar begins to apply; None is its beginning
    shown: frozenset[int] = frozenset()  # control tokens that mark parts of an answer, and whose names are in the text
    ignore_eos: bool = False  # whether end-of-generation tokens count as text and do not end it
    # How many of the likeliest tokens are reported with each written token, with log-probabilities; None is no report.
    logprobs: int | None = None


def make_request(options: SamplingOptions) -> Request:
    """The request that the options describe, without a prompt. Raises UsageError for bad values and grammar files."""
    sampling = sampling_parameters(options, options.temp)
    stops = (options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ())
    if "" in stops:
        raise UsageError("--stop is an empty text, before which every answer ends; leave it out")
    gbnf = read_grammar(options.grammar, options.json_schema)
    try:
        gbnf = check_grammar(gbnf)
    except UsageError as error:
        raise UsageError(f"{source_of(options.grammar, options.json_schema)}: {error}") from error
    return Request([], sampling, settled_max_tokens(options.max_tokens, "--max-tokens"), stops, gbnf)


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
    _before: dict[str, float] = field(default_factory=dict, init=False)  # `spent`, from the first pass on
    _started: float = field(default=0.0, init=False)

    def __post_init__(self, constraint: Constraint | None) -> None:
        request, self.target = self.request, self.engine.target
        self.statistics = Statistics(prompt_tokens=len(request.prompt))  # complete when the text is over
        self.sampler = Sampler(request.sampling, self.target.n_vocab, constraint, len(request.prompt))

    @property
    def is_reading(self) -> bool:
        """Whether chunks of the prompt are left to be read."""
        return self.target.n_chunk > 0

    @property
    def chunk_cells(self) -> int:
        """Cells that the next chunk of the prompt needs at most, with padding."""
        n = self.target.n_chunk
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
        # A beginning that several prompts have is kept once it is read.
        keep = partial(states.keep, self.engine, prompt_states.FEWEST, is_beginning=True)
        self.statistics.prompt_tokens_decoded = target.begin_prompt(prompt, found.parts_at, keep)

    def begin_passes(self, is_alone: bool) -> None:
        """Before the first pass, when the prompt is read: start the clock. Later calls change nothing.

        is_alone: whether the draft, if it is needed, reads the prompt now, and not when it first drafts.
        """
        if self._before:
            return
        plans, statistics, draft = self.plans, self.statistics, self.engine.draft
        n_unread = draft.n_unread(self.request.prompt) if draft else 0
        plans.read_prompt(statistics.prompt_tokens_decoded, statistics.reading_seconds, n_unread)
        if is_alone and draft and plans.needs_draft and self.target.has_states:
            draft.start(self.request.prompt)
        statistics.prefill_seconds = clock.now() - self._started
        self._before = spent(self.engine)

    def begin_step(self, plan: Plan, budget: int | None = None, guide: Guide | None = None) -> StepOfText:
        """This text's part in the next step, in which it follows `plan`. The tree has only its root yet.

        budget: most nodes, where other texts share the pass; None where the text is alone.
        guide: pass times of a shared pass; None for those of the text alone.
        """
        target, temperature = self.target, self.request.sampling.temperature
        root = Draft(TokenTree.root_only(target.tokens[-1]))
        if not plan.drafts:  # a plain pass may take less than a millisecond
            limits = DraftLimits(1, 0, 1, target.max_leaves, target.n_pending)
            return StepOfText(root, text=self, drafting=Drafting(plan, temperature), limits=limits)
        started = clock.now()
        room = target.room()
        limits = DraftLimits(
            budget=min(plan.budget, room if budget is None else min(room, budget)),
            depth=min(plan.depth, self.tokens_left - 1),
            width=plan.width,
            leaves=target.max_leaves,
            pending=target.n_pending,
        )
        draft, sources = self.engine.draft, self._sources_of(plan)
        candidates = ModelCandidates(draft, self.sampler) if draft else None
        drafting = Drafting(plan, temperature, candidates, guide or self.plans.guide, sources)
        step = StepOfText(root, text=self, drafting=drafting, limits=limits)
        # The end of a prompt may wait for the first pass, which then also gives a head the states that it lacks.
        if limits.depth >= 1 and limits.budget >= 2 and (target.has_states or not plan.method.needs_draft):
            step.drafter = step.drafting.drafter()
        step.draft_seconds = clock.now() - started
        return step

    def done(self, step: StepOfText) -> None:
        """Count the pass in which the step was made."""
        statistics, most = self.statistics, self.request.max_tokens
        statistics.count(step, len(step.tokens), step.padding)
        statistics.measure(self.engine, self._before)
        if statistics.passes == 1:
            statistics.first_token_seconds = clock.now() - self._started
        if len(step.tokens) < step.n_tokens:
            step.finish = "stop"
        elif most is not None and statistics.completion_tokens >= most:
            step.finish = "length"
        elif len(self.target.tokens) >= self.engine.ctx_size:
            step.finish = "context"
        elif self.interrupted():
            step.finish = "interrupted"
        self.is_over = step.finish is not None

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
        permitted = self.sampler.permitted if self.sampler.constraint else None
        sources.follow(self.target.tokens, names, permitted, self.sampler.noise)
        return sources


@dataclass(eq=False, kw_only=True)
class StepOfText(PassRecord):
    """One text's part in a step, filled in from drafting to what is learned of it."""

    text: Generation
    drafting: Drafting  # what its tree is drafted from
    limits: DraftLimits
    drafter: Drafter | None = None  # None where nothing is drafted
    draft_reading_seconds: float = 0.0  # in which the draft read prompts of texts that share a pass
    tokens: list[int] = field(default_factory=list)  # the committed token ids, without an end-of-generation token
    finish: FinishReason | None = None  # why the text ends with this pass; None if it goes on
    padding: int = 0  # tokens of padding in the pass, where it has this text alone
    logprobs: tuple[TokenLogprob, ...] = ()  # one for each of `tokens`, where the request asks for them

    @property
    def n_scored(self) -> int:
        """Tokens that the pass has of this text, without padding."""
        return self.limits.pending + len(self.tree)

    def grow(self) -> StepOfText:
        """Grow the tree, in draft passes of its own."""
        if self.drafter:
            started = clock.now()
            self.draft = self.drafter.draft(self.text.target.tokens, self.limits)
            self.draft_seconds += clock.now() - started
        return self

    def keep_nodes(self, n: int) -> None:
        """Keep the `n` likeliest nodes of the tree, root included."""
        if n < len(self.tree):
            self.draft = self.draft.limited(n, self.limits.leaves)

    def accept(self, rows: Logits) -> None:
        """Accept a path of the tree up to the end of the text, and let draft sources learn.

        rows: float32[len(tree), n_vocab], the target's logits, which the next pass overwrites.
        """
        text, target = self.text, self.text.target
        accepted = accept(self.drafting.plan.method.rule, self.draft, rows, text.sampler, target.tokens)
        n_exact = target.n_exact(accepted.path, len(target.tokens) - 1)
        accepted = accepted.first(n_exact) if n_exact < len(accepted.path) else accepted
        ends = next((i for i, token in enumerate(accepted.tokens) if text.ends_text(token)), None)
        self.accepted = accepted if ends is None else accepted.first(ends + 1)
        self.tokens = self.accepted.tokens[:ends]
        if (n_top := text.request.logprobs) is not None:
            along = zip(self.accepted.path, self.tokens, strict=False)  # a token that ends the text is in none
            self.logprobs = tuple(logprob(rows[node], token, n_top) for node, token in along)
        if self.drafting.guesses:
            self.drafting.guesses.learn(self.tree, rows, self.accepted)

"""A loaded model that can write. The command line, the Python API and all measurements get their engine from here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import WeakSet

from specrun.decoding import prompt_states
from specrun.decoding.completion import Completion
from specrun.decoding.engine import Engine, Slots
from specrun.decoding.generation import Request, make_request
from specrun.decoding.prompt_states import PromptStates
from specrun.decoding.prompts import FittedTemplate, chat_template, single_turn_tokens
from specrun.decoding.session import Session
from specrun.errors import UsageError
from specrun.hardware.cpu import LoadWatch
from specrun.hardware.fit import Residency
from specrun.hardware.placement import Placement
from specrun.llama import DraftContext, LlamaModel
from specrun.llama.grammar import Grammars
from specrun.loading import exact_passes
from specrun.loading.learning import Learner
from specrun.loading.loading import load_pair, timed
from specrun.loading.many import Listed, in_order, write_many
from specrun.loading.placing import LoadPlan, plan_load
from specrun.loading.run_options import RunOptions
from specrun.loading.run_plans import FollowedPlans, RunPlans, may_follow
from specrun.long_run import no_display
from specrun.options.expand import with_options_of
from specrun.options.sampling_options import ChatSamplingOptions, SamplingOptions
from specrun.speculation.controllers.chooser import FixedPlan, PlanChooser
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import PLAIN_ONLY
from specrun.speculation.sources.source_set import SourceSet


class Model:
    """A loaded target and, if a plan needs it, its draft. Use it in a `with` statement, or close it.

    notices: sentences for the user, one for each difference from what the options ask.
    draft: the file of the draft that is loaded; None without one.
    engine: the decode loop.
    slots: all engines, where several texts can be written at the same time; `engine` is the first.
    exactness: the sizes to which the target's passes are padded.
    prompt_states: prompts that are kept on disk; None where none are (see `keep_prompts`).

    Making one raises ModelFileError, PairError, UsageError or LlamaError if the files or the machine do not allow it.
    """

    def __init__(
        self, options: RunOptions | LoadPlan, learner: Learner | None = None, show: Callable[[str], None] = no_display
    ) -> None:
        """options: what to load, or the plan that was made for it. learner: keeps what runs teach, and knows what
        earlier runs taught. show: shows what is being loaded.
        """
        plan = options if isinstance(options, LoadPlan) else plan_load(options)
        options = plan.options
        self._plan = plan
        self._pair = load_pair(plan, show)
        self.draft = options.draft if self._pair.drafts else None
        self.notices = self._pair.notices
        self._grammars = self._pair.resources.enter_context(Grammars(self._pair.model))
        self.prompt_states: PromptStates | None = None
        self._completions: WeakSet[Completion] = WeakSet()
        try:
            self._plans = FollowedPlans(self._made_ready(options, learner))
            self._pair.resources.callback(self._plans.keep)
        except BaseException:
            self.close()
            raise

    def _made_ready(self, options: RunOptions, learner: Learner | None) -> RunPlans:
        """Make the engine and the plans; with `exact`, keep to passes that are exact."""
        pair = self._pair
        plans = pair.plans
        if options.profile:
            self.exactness = exact_passes.of_profile(options.profile)
        elif options.exact:
            self.exactness = exact_passes.measured(pair.target, plans, options, pair.placement)
        else:
            self.exactness = exact_passes.of_one_cache(pair.target)
        for target in pair.targets:
            target.padding = self.exactness.sizes
        self.slots = self._slots()
        self.engine = self.slots.engines[0]
        if options.exact:
            self.notices += self.exactness.notices
            if self.exactness.sizes == PLAIN_ONLY:
                plans = (OFF.plan(),)
        profile = options.profile if pair.drafts or not options.draft else None
        known = profile or (learner.earlier if learner else None)
        draft = pair.drafts[0] if pair.drafts and len(plans) > 1 and known is None else None
        draft_table = timed(draft.context) if isinstance(draft, DraftContext) else None
        guesses = self._plan.guesses
        return RunPlans(self.engine, plans, profile, options.follow, known, guesses, draft_table, learner)

    @property
    def plans(self) -> RunPlans:
        """The plans that can run, and what chooses among them with the present number of threads."""
        return self._plans.now

    def keep_prompts(self) -> None:
        """From now on take up what is kept on disk of prompts, and keep those that are read."""
        draft = self._pair.drafts[0].context if self._pair.drafts else None
        subject = prompt_states.of_target(self._pair.target.context, self.exactness.sizes, self.placement)
        self.prompt_states = PromptStates(subject, prompt_states.of_draft(draft) if draft else None)
        self._pair.resources.callback(self.prompt_states.close, self.engine)  # before the contexts are freed

    def _slots(self) -> Slots:
        """An engine for each text that can be written at a time. With recurrent states, and with a draft that drafts
        for one text, all but the first are decoded plainly.
        """
        pair, sizes = self._pair, self.exactness.sizes
        is_shared = not sizes.in_order and sizes != PLAIN_ONLY
        if not is_shared and len(pair.targets) > 1:
            self.notices.append(f"texts are written one at a time, because exact passes have {sizes}")
        engines = []
        for i, target in enumerate(pair.targets if is_shared else pair.targets[:1]):
            if i and (pair.model.is_recurrent or len(pair.drafts) == 1):
                engines.append(Engine(target, None, pair.ctx_size))
                continue
            engines.append(Engine(target, pair.drafts[i] if pair.drafts else None, pair.ctx_size, SourceSet()))
        return Slots(engines, self._plan.options.shared_tokens if len(engines) > 1 else None)

    def follow_load(self, watch: LoadWatch, again: bool) -> None:
        """Let passes have as many threads as other programs leave cores for, unless the user or the profile decided it,
        or the text would depend on it.

        watch: runs since before the model was loaded. again: whether to look at the load between texts, too.
        """
        target = self._pair.target.context
        if may_follow(self._plan.options, target.config.settings, self.placement, bool(self.plans.kept)):
            contexts = [target, *(draft.context for draft in self._pair.drafts[:1])]
            self._plans.follow_load(contexts, watch, again)

    @property
    def n_threads(self) -> int | None:
        """CPU threads of a pass while other programs hold cores; None while there are as many as ever."""
        return self._plans.n_threads

    @property
    def threads_notice(self) -> str | None:
        """A sentence for the user while other programs hold cores; else None."""
        return self._plans.notice

    @property
    def llama_model(self) -> LlamaModel:
        """The target's weights and vocabulary."""
        return self._pair.model

    @property
    def placement(self) -> Placement | None:
        """Which layers are in VRAM; None without a GPU."""
        return self._pair.placement

    @property
    def residency(self) -> Residency:
        """How the target's weights in RAM are held now."""
        weights = self._pair.target.context.weights
        return weights.residency if weights else Residency()

    @property
    def weights_notice(self) -> str | None:
        """A sentence for the user, to be said after a text: what became of the weights while it was written."""
        if file := self.llama_model.overwritten:
            return f"{file} was written to while it was in use, so this text may be wrong; load the model again"
        return self.residency.notice

    @cached_property
    def _template(self) -> FittedTemplate | None:
        """The chat template, compiled once for all prompts; None if there is none."""
        return chat_template(self.llama_model)

    @with_options_of(SamplingOptions)
    def generate(self, prompt: str, *, raw: bool = False, system: str | None = None, **options: Any) -> Completion:
        """Write the answer to a prompt.

        raw: continue the prompt as it is, without the model's chat template. system: the system message.
        options: the sampling options of `specrun generate`, with underscores: `max_tokens`, `temp`, `seed`, ...

        Raises PromptError for a prompt that does not fit the context, and UsageError for impossible options.
        """
        return self._prompted(prompt, raw, system, options).run()

    @with_options_of(SamplingOptions)
    def stream(self, prompt: str, *, raw: bool = False, system: str | None = None, **options: Any) -> Iterator[str]:
        """The same as `generate`, but yields pieces of text as they are written."""
        return self._prompted(prompt, raw, system, options).stream()

    @with_options_of(SamplingOptions)
    def generate_many(
        self,
        prompts: Iterable[str],
        *,
        parallel: int | None = None,
        raw: bool = False,
        system: str | None = None,
        **options: Any,
    ) -> Iterator[Completion]:
        """Write the answers to many prompts, and yield them in the order of the prompts.

        parallel: most that are written at a time, in shared passes; None for as many as the model was loaded for
        (`specrun.load(..., parallel=8)`). The other options, and what is raised, are those of `generate`.
        """
        if parallel is not None and parallel < 1:
            raise UsageError(f"parallel must be 1 or more; got {parallel}")
        request = make_request(SamplingOptions(**options))
        requests = (replace(request, prompt=self.prompt_tokens(prompt, raw, system)) for prompt in prompts)
        return in_order(write_many(self, Listed(enumerate(requests)), parallel))

    @with_options_of(ChatSamplingOptions)
    def chat(self, system: str | None = None, **options: Any) -> Session:
        """A conversation, whose `ask(text)` and `stream(text)` write the next answer.

        system: the system message; None for none. options: the sampling options of `specrun chat`, with underscores.
        Raises ModelFileError for a broken chat template.
        """
        session = self.session(make_request(ChatSamplingOptions(**options)))
        session.system = system
        return session

    def session(self, request: Request) -> Session:
        """A conversation whose answers are written as `request` says; its prompt is ignored."""
        return Session(self.llama_model, self.engine.ctx_size, self.complete, request, self.prompt_states)

    def complete(self, request: Request, plans: PlanChooser | None = None, engine: Engine | None = None) -> Completion:
        """A completion, not written yet, by the chooser `plans` (None: the model's own) and an engine of `slots`."""
        writing = [one for one in self._completions if not one.is_over]
        if not any(one.statistics.passes for one in writing):
            self._plans.look()
        if learner := self.plans.learner:
            learner.keep_now_and_then(self.plans.kept)
        engine = engine or self.engine
        if engine.sources is None:
            plans = FixedPlan(OFF.plan())
        plans = plans or self.plans.at(request.sampling.temperature)
        in_use = {one.request.gbnf for one in writing}
        constraint = self._grammars.constraint(request.gbnf, request.trigger, request.shown, in_use)
        completion = Completion(engine, request, plans, constraint, self.prompt_states)
        self._completions.add(completion)
        return completion

    def prompt_tokens(self, text: str, raw: bool = False, system: str | None = None) -> list[int]:
        """Token ids of a prompt, which is put into the model's chat template unless `raw`. system: as `generate`'s.

        Raises UsageError for a system message without a template to put it into.
        """
        template = None if raw else self._template
        if system and template is None:
            why = "--raw" if raw else "the model has no chat template (--chat-template gives one)"
            raise UsageError(f"a system message needs a chat template, and there is none: {why}")
        return single_turn_tokens(self.llama_model, text, template, system)

    def forget(self, keep_caches: bool = False) -> None:
        """Replace the draft sources by empty ones, and empty both KV caches unless `keep_caches`."""
        if not keep_caches:
            self.engine.reset()
        self.engine.sources = SourceSet()

    def close(self) -> None:
        """Free everything, and keep what was learned and read. Safe to call twice."""
        self._pair.resources.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prompted(self, prompt: str, raw: bool, system: str | None, options: Mapping[str, Any]) -> Completion:
        request = make_request(SamplingOptions(**options))
        return self.complete(replace(request, prompt=self.prompt_tokens(prompt, raw, system)))

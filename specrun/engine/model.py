"""A loaded model, ready to write: what the command line, the Python API and everything else get an engine from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from specrun.catalog.local_pair import Fetcher, SilentFetcher
from specrun.engine.completion import Completion
from specrun.engine.decoding import Engine
from specrun.engine.default_settings import with_defaults
from specrun.engine.exact_passes import keep_exact, measured_limit
from specrun.engine.loading import load_pair
from specrun.engine.prompt_tokens import chat_template, single_turn_tokens
from specrun.engine.request import Request, make_request
from specrun.engine.resolving import run_options, with_profile
from specrun.engine.run_options import RunOptions
from specrun.engine.run_plans import RunPlans
from specrun.engine.run_sources import RunSources
from specrun.engine.session import Session
from specrun.hardware.placement import Placement
from specrun.llama import LlamaModel
from specrun.llama.grammar import Grammar
from specrun.options.expand import with_options_of
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.sampling_options import ChatSamplingOptions, SamplingOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.speculation.controllers.chooser import PlanChooser
from specrun.speculation.plan import Plan

Group = TypeVar("Group", ModelOptions, SpeculationOptions, MachineOptions)


class Model:
    """A loaded target, and its draft if one drafts. Use it in a `with`, or close it, to free everything.

    notices: sentences that say where anything differs from what was asked for.
    engine: the decode loop. plans: the plans that can run, and what chooses among them.
    placement: where the layers went; None without a GPU.
    Raises ModelFileError, PairError, UsageError or LlamaError if the files or the machine do not allow it.
    """

    engine: Engine
    plans: RunPlans

    def __init__(self, options: RunOptions) -> None:
        options = options.with_profile
        self._pair = load_pair(options)
        self.notices = list(self._pair.notices)
        self._datastore = options.datastore
        self._grammars: dict[str, Grammar] = {}
        try:
            self._make_ready(options)
        except BaseException:
            self.close()
            raise

    def _make_ready(self, options: RunOptions) -> None:
        """Give the pair its draft sources, its engine and its plans; with `exact`, measure which passes are exact."""
        pair = self._pair
        sources = RunSources(pair.model, options.datastore, options.history, self.notices.append)
        pair.resources.callback(sources.close)
        self.engine = Engine(pair.target, pair.draft, pair.ctx_size, sources.set, options.overlap)
        pair.resources.callback(self.engine.close)
        plans = pair.plans
        if options.exact and any(plan.drafts for plan in plans):
            profile = options.profile
            limit = profile.exact_up_to if profile else measured_limit(pair.target, plans, pair.ctx_size)
            plans, notices = keep_exact(pair.target, plans, limit)
            self.notices += notices
        profile = options.profile if pair.draft or not options.draft else None
        self.plans = RunPlans(self.engine, plans, profile, options.follow)

    @property
    def llama_model(self) -> LlamaModel:
        """The target's weights and vocabulary."""
        return self._pair.model

    @property
    def placement(self) -> Placement | None:
        """Where the layers went; None without a GPU."""
        return self._pair.placement

    @property
    def has_datastore(self) -> bool:
        """Whether a datastore is among the draft sources."""
        return self._datastore is not None

    @with_options_of(SamplingOptions)
    def generate(self, prompt: str, *, raw: bool = False, **options: Any) -> Completion:
        """Write the answer to a prompt; `raw` continues the prompt instead of using the model's chat template.

        options: the sampling options of `specrun generate`, with underscores: `max_tokens`, `temp`, `seed`, ...
        Raises PromptError for a prompt that does not fit the context, UsageError for impossible options.
        """
        return self._prompted(prompt, raw, options).run()

    @with_options_of(SamplingOptions)
    def stream(self, prompt: str, *, raw: bool = False, **options: Any) -> Iterator[str]:
        """The same as `generate`, in pieces of text as they are written."""
        return self._prompted(prompt, raw, options).stream()

    @with_options_of(ChatSamplingOptions)
    def chat(self, system: str | None = None, **options: Any) -> Session:
        """A conversation; `ask(text)` and `stream(text)` write its next answer. options: those of `specrun chat`.

        Raises ModelFileError for a model without a chat template.
        """
        session = self.session(make_request(ChatSamplingOptions(**options)))
        session.system = system
        return session

    def session(self, request: Request) -> Session:
        """A conversation whose answers are written as `request` says."""
        return Session(self.llama_model, self.engine.ctx_size, self.complete, request)

    def complete(self, request: Request, plans: PlanChooser | None = None) -> Completion:
        """The completion to stream. plans: what chooses each pass's plan, if not this model's own."""
        plans = plans or self.plans.at(request.sampling.temperature)
        return Completion(self.engine, request, plans, self._grammar(request.gbnf))

    def prompt_tokens(self, text: str, raw: bool = False) -> list[int]:
        """Token ids of a prompt: the user's only message by the model's chat template, or with `raw` as it is."""
        return single_turn_tokens(self.llama_model, text, None if raw else chat_template(self.llama_model))

    def forget(self, keep_caches: bool = False) -> None:
        """Let the next text be drafted from nothing that was written before. Empties the KV caches, too, unless
        `keep_caches`.
        """
        if not keep_caches:
            self.engine.reset()
        self.engine.sources = RunSources(self.llama_model, self._datastore, False, self.notices.append).set

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        for grammar in self._grammars.values():
            grammar.close()
        self._grammars.clear()
        self._pair.resources.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prompted(self, prompt: str, raw: bool, options: Mapping[str, Any]) -> Completion:
        request = make_request(SamplingOptions(**options))
        return self.complete(replace(request, prompt=self.prompt_tokens(prompt, raw)))

    def _grammar(self, gbnf: str | None) -> Grammar | None:
        if gbnf is None:
            return None
        if gbnf not in self._grammars:
            self._grammars[gbnf] = Grammar(gbnf, self.llama_model)
        return self._grammars[gbnf]


def open_model(
    models: ModelOptions,
    speculation: SpeculationOptions,
    machine: MachineOptions,
    temperature: float,
    fetcher: Fetcher,
    note: Callable[[str], None],
    largest: Plan | None = None,
) -> Model:
    """The model that the options name.

    temperature: of the texts to come; where the profile chooses the size of a method's trees, it depends on it.
    fetcher: fetches missing models. note: is told what is chosen before anything is loaded.
    largest: a plan that the contexts must hold besides those asked for.
    Raises the errors of `Model`, MissingModelError and HubError.
    """
    options = with_profile(run_options(models, speculation, machine, fetcher, note), speculation, temperature, note)
    if options.profile is None:
        options = with_defaults(options)
    return Model(replace(options, largest=largest))


def load(target: str | Path | None, draft: str | Path | None, options: Mapping[str, Any]) -> Model:
    """See `specrun.load`."""
    values = {**options, "target": _name(target), "draft": _name(draft)}
    models, speculation, machine = (
        _taken(ModelOptions, values),
        _taken(SpeculationOptions, values),
        _taken(MachineOptions, values),
    )
    if values:
        raise TypeError(f"specrun.load() has no option {next(iter(values))!r}")
    notices: list[str] = []
    temperature = SamplingOptions().temp
    model = open_model(models, speculation, machine, temperature, SilentFetcher(models.pull), notices.append)
    model.notices[:0] = notices
    return model


def _taken(group: type[Group], values: dict[str, Any]) -> Group:
    """The option group made from those of the values that belong to it, which are removed."""
    return group(**{name: values.pop(name) for name in group.__dataclass_fields__ if name in values})


def _name(model: str | Path | None) -> str | None:
    return None if model is None else str(model)

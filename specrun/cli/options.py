"""Options that several commands share. Where llama.cpp has an option for the same thing, ours has its name."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specrun.cli.machine_options import MachineOptions
from specrun.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from specrun.runtime import RuntimeOptions
    from specrun.sampling import SamplingParameters
    from specrun.speculation import Plan

MODELS = "Models"
SPECULATION = "Speculation"
SAMPLING = "Sampling"

Speculate = Literal["auto", "off", "chain", "tree"]

# What `auto` runs: measured on the embedded pair, docs/benchmarks/embedded-pair.md.
_DEFAULT_BUDGET = 16
_DEFAULT_DEPTH = 8
_DEFAULT_CHAIN = 4

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-m",
        envvar="SPECRUN_TARGET",
        metavar="MODEL",
        help="Whose text you want: a name of `specrun models list`, org/repo:QUANT, or a GGUF file. "
        "Without it: the embedded demo pair.",
        show_default=False,
        rich_help_panel=MODELS,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        "-md",
        envvar="SPECRUN_DRAFT",
        metavar="MODEL",
        help="A small model with the same tokenizer; none does without. By default the one the catalog recommends.",
        show_default=False,
        rich_help_panel=MODELS,
    ),
]
Pull = Annotated[
    bool,
    typer.Option("--pull", "--yes", "-y", help="Fetch missing models without asking.", rich_help_panel=MODELS),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="How to draft and accept, by a name of `specrun methods`.",
        show_default=False,
        rich_help_panel=SPECULATION,
    ),
]
GrowthMap = Annotated[
    Path | None,
    typer.Option(
        "--growth-map",
        metavar="FILE",
        help="The tree's shape for Sequoia's methods, of `specrun methods growth-map`; by default measured.",
        show_default=False,
        rich_help_panel=SPECULATION,
    ),
]
Datastore = Annotated[
    Path | None,
    typer.Option(
        "--datastore",
        metavar="FILE",
        help="Draft from these files, too: a file of `specrun datastore`.",
        show_default=False,
        rich_help_panel=SPECULATION,
    ),
]
History = Annotated[
    bool,
    typer.Option(
        "--history",
        help="Draft from earlier sessions with --history, too, and keep this one (texts stay on this machine).",
        rich_help_panel=SPECULATION,
    ),
]
SpeculateOption = Annotated[
    Speculate,
    typer.Option(help="How to draft. The text is the same with all of them.", rich_help_panel=SPECULATION),
]
Budget = Annotated[
    int | None,
    typer.Option(metavar="N", help="Nodes of a tree, root included; 16 by default.", rich_help_panel=SPECULATION),
]
Depth = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most drafted tokens in a row; by default 8 in a tree, 4 in a chain.",
        rich_help_panel=SPECULATION,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        "-n",
        "--predict",
        metavar="N",
        help="Most tokens to write; by default until the model ends its text, or the context is full.",
        rich_help_panel=SAMPLING,
    ),
]
Temperature = Annotated[
    float, typer.Option("--temp", metavar="T", help="Temperature; 0 is greedy.", rich_help_panel=SAMPLING)
]
TopK = Annotated[int, typer.Option("--top-k", metavar="K", help="0 is off.", rich_help_panel=SAMPLING)]
TopP = Annotated[float, typer.Option("--top-p", metavar="P", help="1 is off.", rich_help_panel=SAMPLING)]
MinP = Annotated[float, typer.Option("--min-p", metavar="P", help="0 is off.", rich_help_panel=SAMPLING)]
RepeatPenalty = Annotated[
    float, typer.Option("--repeat-penalty", metavar="R", help="1 is off.", rich_help_panel=SAMPLING)
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", metavar="R", help="0 is off.", rich_help_panel=SAMPLING)
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", metavar="R", help="0 is off.", rich_help_panel=SAMPLING)
]
RepeatLastN = Annotated[
    int, typer.Option("--repeat-last-n", metavar="N", help="Tokens that penalties look at.", rich_help_panel=SAMPLING)
]
Seed = Annotated[
    int,
    typer.Option("--seed", "-s", metavar="N", help="Same seed, same text; -1 is random.", rich_help_panel=SAMPLING),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        "-r",
        metavar="TEXT",
        help="End before this text; may be given several times.",
        show_default=False,
        rich_help_panel=SAMPLING,
    ),
]
GrammarFile = Annotated[
    Path | None,
    typer.Option(
        "--grammar",
        metavar="FILE",
        help="Write only what this GBNF grammar allows.",
        show_default=False,
        rich_help_panel=SAMPLING,
    ),
]
JsonSchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--json-schema",
        metavar="FILE",
        help="Write only JSON that this schema accepts.",
        show_default=False,
        rich_help_panel=SAMPLING,
    ),
]


@dataclass(frozen=True)
class ModelOptions:
    """The options of one command that decide what is loaded."""

    target: str | None
    draft: str | None
    speculate: Speculate
    budget: int | None
    depth: int | None
    machine: MachineOptions
    pull: bool = False
    method: str | None = None
    growth_map: Path | None = None
    datastore: Path | None = None
    history: bool = False

    def plans(self) -> tuple[Plan, ...]:
        """The plan these options ask for; with `auto`, those to choose from."""
        from specrun.speculation import Plan
        from specrun.speculation.plan import MAX_BUDGET

        if self.depth is not None and not 0 <= self.depth < MAX_BUDGET:
            raise UsageError(f"--depth must be between 0 and {MAX_BUDGET - 1}; got {self.depth}")
        if self.method is not None:
            return (self._plan_of_method(),)
        if self.growth_map:
            raise UsageError("--growth-map goes with --method sequoia or sequoia-match")
        if self.speculate == "off" or self.budget == 1:
            return (Plan.off(),)
        chain = Plan.chain(self.depth if self.depth is not None else _DEFAULT_CHAIN)
        if self.speculate == "chain":
            return (chain,)
        budget = self.budget if self.budget is not None else _DEFAULT_BUDGET
        tree = Plan.tree(budget, self.depth if self.depth is not None else _DEFAULT_DEPTH)
        return (tree,) if self.speculate == "tree" else (tree, Plan.off(), chain)

    def _plan_of_method(self) -> Plan:
        from specrun.speculation import methods
        from specrun.speculation.method import DATASTORE
        from specrun.speculation.shape import TreeShape

        if self.speculate != "auto":
            raise UsageError("--method and --speculate exclude each other; choose one")
        assert self.method
        method = methods.find(self.method)
        if DATASTORE in method.needs and self.datastore is None:
            raise UsageError(f"--method {self.method} needs a --datastore; `specrun datastore` makes one")
        if self.growth_map is None:
            return method.plan(self.budget, self.depth)
        if not method.wants_shape or self.budget is not None or self.depth is not None:
            raise UsageError("--growth-map goes with --method sequoia or sequoia-match, without --budget and --depth")
        try:
            return method.plan().shaped(TreeShape.from_text(self.growth_map.read_text(encoding="utf-8")))
        except OSError as error:
            raise UsageError(f"{self.growth_map} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"{self.growth_map} is no growth map: {error}") from error

    def check_constrained(self, grammar: Path | None, json_schema: Path | None) -> None:
        """Raises UsageError for a grammar with a method that draws its trees, whatever a grammar allows."""
        from specrun.speculation import methods

        if (grammar or json_schema) and self.method and methods.find(self.method).samples:
            option = "--grammar" if grammar else "--json-schema"
            raise UsageError(f"{option} goes with methods that sample and match, not with {self.method}")

    def runtime_options(self, largest: Plan | None = None) -> RuntimeOptions:
        """What `specrun.runtime.Runtime` needs, profiles left aside. largest: a plan that the contexts must hold
        besides those asked for.

        Missing models are fetched, if the user agrees. Raises UsageError for options that cannot be, MissingModelError
        and HubError for models that cannot be had.
        """
        from specrun.cli.pulling import local_pair
        from specrun.runtime import RuntimeOptions
        from specrun.speculation import methods
        from specrun.speculation.method import DRAFT

        if self.target is None and self.draft not in (None, "none"):
            raise UsageError("--draft needs the --target it drafts for")
        plans = self.plans()
        wants_draft = any(plan.depth and DRAFT in methods.METHODS[plan.method].needs for plan in plans)
        target, draft = local_pair(self.target, self.draft, wants_draft, self.pull)
        return RuntimeOptions(
            target=target,
            draft=draft,
            plans=plans,
            largest=largest,
            ctx_size=self.machine.ctx_size,
            settings=self.machine.target_settings(),
            draft_settings=self.machine.draft_settings(),
            exact=self.machine.exact,
            datastore=self.datastore,
            remember=self.history,
        )

    def tuned(self, note: Callable[[str], None], temperature: float, largest: Plan | None = None) -> RuntimeOptions:
        """The same with the profile of this pair on this machine, if there is one: with its settings in any case, as
        the text may hang on them, and with its plans where these are left to specrun. `note` is told why there is none
        although there was one. Raises UsageError for a method that cannot do without.
        """
        options = self.runtime_options(largest)
        follow = self.speculate == "auto" and self.method is None and self.budget is None and self.depth is None
        from specrun.speculation import methods
        from specrun.speculation.method import PROFILE
        from specrun.tuning import growth_maps, lookup

        if options.draft is None:
            return replace(options, profile=lookup.settings_of(options), follow=False)
        found = lookup.find(lookup.identify(options))
        if found.notice and (follow or self.method):
            note(found.notice)
        plan = options.plans[0]
        if self.method and found.profile is None and PROFILE in methods.METHODS[plan.method].needs:
            raise UsageError(f"--method {self.method} needs a profile of this pair; run `specrun tune` first")
        if self.method and found.profile:
            is_open = self.budget is None and self.depth is None
            options = replace(options, plans=(growth_maps.by_profile(plan, found.profile, temperature, is_open),))
        return replace(options, profile=found.profile, follow=follow)


def sampling_parameters(
    temp: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repeat_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    repeat_last_n: int,
    seed: int,
) -> SamplingParameters:
    """The sampling options as one value; raises UsageError for one outside its range."""
    from specrun.sampling import SamplingParameters

    return SamplingParameters(
        temperature=temp,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repeat_last_n=repeat_last_n,
        seed=secrets.randbits(63) if seed == -1 else seed,
    )


def check_max_tokens(max_tokens: int | None) -> int | None:
    """`--max-tokens`, with llama.cpp's -1 read as no limit. Raises UsageError for 0 and other negatives."""
    if max_tokens is None or max_tokens == -1:
        return None
    if max_tokens < 1:
        raise UsageError(f"--max-tokens must be 1 or more (-1 is no limit); got {max_tokens}")
    return max_tokens

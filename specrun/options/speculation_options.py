"""The options that name the two models, and those that say how to draft."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from specrun.errors import UsageError
from specrun.locations import pasted
from specrun.options.expand import complete_drafts, complete_methods, complete_targets, flag, option

if TYPE_CHECKING:
    from specrun.speculation.method import Plan

_PANEL = "Models"


@dataclass(frozen=True)
class ModelOptions:
    """The options as the user gave them.

    target: None and "embedded" are the embedded pair. draft: None is the usual draft of the target (see `local_pair`),
    "none" is no draft. `specrun tune` also takes a comma-separated list.
    """

    # fmt: off
    target: str | None = option(
        None, "MODEL", "The large model whose text you want. A name listed by `specrun models list`, org/repo:QUANT, a "
        "GGUF file, or embedded for the demo pair, which is the default of all commands but chat and serve.", "-m",
        envvar="SPECRUN_TARGET", rich_help_panel=_PANEL, autocompletion=complete_targets
    )
    draft: str | None = option(
        None, "MODEL", "The small model that drafts, or none. Best of the same family, a head that was trained for the "
        "target, or mtp for the target's own MTP layers; without --target: draft or eagle3. By default the fastest "
        "that `specrun tune` measured, else the draft that the catalog recommends.", "-md",
        envvar="SPECRUN_DRAFT", rich_help_panel=_PANEL, autocompletion=complete_drafts
    )
    chat_template: str | None = option(
        None, "NAME|FILE", "A chat template for the target: a Jinja file, or the name of a template of llama.cpp's, "
        "such as chatml. By default the model file's own.", usual=False, rich_help_panel=_PANEL
    )
    # fmt: on
    pull: bool = flag("Download missing models without asking.", "--yes", "-y", "--pull", rich_help_panel=_PANEL)

    def __post_init__(self) -> None:
        for name in ("target", "draft"):
            if value := getattr(self, name):
                object.__setattr__(self, name, pasted(value))


Speculate = Literal["auto", "off", "chain", "tree"]

_option = partial(option, rich_help_panel="Speculation", usual=False)

# Bound of the trees of `auto`, which are as large as pays: the tokens of a prompt that llama.cpp computes at once.
_AUTO_BUDGET = 512  # nodes


@dataclass(frozen=True)
class SpeculationOptions:
    """The options as the user gave them. They do not change the text, except for methods that are marked otherwise."""

    # fmt: off
    speculate: Speculate = _option(
        "auto", "auto|off|chain|tree", "What to draft: what is fastest here (auto), nothing (off), one path (chain), "
        "or a tree. The text is always the same.", usual=True
    )
    method: str | None = _option(
        None, "NAME", "Draft and accept by a method that `specrun methods` lists.", autocompletion=complete_methods
    )
    budget: int | None = _option(
        None, "N", "Most nodes of a tree, root included. By default 16; with auto as many as pay."
    )
    depth: int | None = _option(
        None, "N", "Most drafted tokens on a path. By default 8 in a tree and 4 in a chain; with auto as many as pay."
    )
    width: int | None = _option(
        None, "N", "Most nodes that one draft pass expands. By default the mean width of a level in a tree; with auto "
        "as many as pay."
    )
    learn: bool = _option(
        True, None, "Whether auto begins with what earlier runs of this pair learned, and keeps what this one learns. "
        "By default it does.",
        "--learn/--no-learn"
    )
    # fmt: on

    @property
    def is_open(self) -> bool:
        """Whether the size of the trees is left to specrun."""
        return self.budget is None and self.depth is None and self.width is None

    @property
    def is_auto(self) -> bool:
        """Whether everything is left to specrun."""
        return self.speculate == "auto" and self.method is None and self.is_open

    def plans(self) -> tuple[Plan, ...]:
        """The plan of the options; with `auto`, the plans to choose from. Raises UsageError for impossible options."""
        from specrun.speculation.drafters.chain import CHAIN
        from specrun.speculation.drafters.cost_aware import MERGED
        from specrun.speculation.drafters.guessed import DRAFTLESS
        from specrun.speculation.drafters.specexec import SPECEXEC
        from specrun.speculation.method import MAX_BUDGET, OFF

        if self.depth is not None and not 0 <= self.depth < MAX_BUDGET:
            raise UsageError(f"--depth must be between 0 and {MAX_BUDGET - 1}; got {self.depth}")
        if self.width is not None and not 1 <= self.width <= MAX_BUDGET:
            raise UsageError(f"--width must be between 1 and {MAX_BUDGET}; got {self.width}")
        if self.method is not None:
            return (self._plan_of_method(self.method),)
        if self.speculate == "off" or self.budget == 1 or (self.speculate == "auto" and self.depth == 0):
            return (OFF.plan(),)
        if self.speculate == "chain":
            return (CHAIN.plan(depth=self.depth),)
        if self.speculate == "tree":
            return (SPECEXEC.plan(self.budget, self.depth, self.width),)
        # Where text is copied, a path of guesses may be as long as the tree is large.
        budget = _AUTO_BUDGET if self.budget is None else self.budget
        depth = min(max(budget - 1, 0), MAX_BUDGET - 1 if self.depth is None else self.depth)
        return (MERGED.plan(budget, depth, self.width), DRAFTLESS.plan(budget, depth), OFF.plan())

    def _plan_of_method(self, name: str) -> Plan:
        from specrun.speculation import registry

        if self.speculate != "auto":
            raise UsageError("--method and --speculate exclude each other; choose one")
        return registry.find(name).plan(self.budget, self.depth, self.width)

    def check_constrained(self, grammar: str | None, json_schema: str | None) -> None:
        """Raises UsageError for a grammar together with a method whose drafts cannot follow one."""
        from specrun.speculation import registry

        if (grammar or json_schema) and self.method and registry.find(self.method).samples:
            option = "--grammar" if grammar else "--json-schema"
            raise UsageError(f"{option} goes with methods that sample and match, not with {self.method}")

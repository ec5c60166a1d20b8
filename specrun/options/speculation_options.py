"""The options that say how to draft."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specrun.errors import UsageError

if TYPE_CHECKING:
    from specrun.speculation.plan import Plan

Speculate = Literal["auto", "off", "chain", "tree"]

# What `auto` tries where no profile says more.
_BUDGET = 16
_DEPTH = 8
_CHAIN = 4


def _option(*names: str, **values: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Speculation", show_default=False, **values)


Datastore = Annotated[
    Path | None,
    _option("--datastore", metavar="FILE", help="Draft from these files, too: a file of `specrun datastore`."),
]
Budget = Annotated[int | None, _option(metavar="N", help="Nodes of a tree, root included; 16 by default.")]
Depth = Annotated[
    int | None,
    _option(metavar="N", help="Most drafted tokens in a row; by default 8 in a tree, 4 in a chain."),
]


@dataclass(frozen=True)
class SpeculationOptions:
    """As the user gave them. The text is the same with all of them, but for methods that are marked otherwise."""

    speculate: Annotated[
        Speculate,
        typer.Option(help="How to draft. The text is the same with all of them.", rich_help_panel="Speculation"),
    ] = "auto"
    method: Annotated[
        str | None,
        _option("--method", metavar="NAME", help="How to draft and accept, by a name of `specrun methods`."),
    ] = None
    growth_map: Annotated[
        Path | None,
        _option(
            "--growth-map",
            metavar="FILE",
            help="The tree's shape for Sequoia's methods, of `specrun methods growth-map`; by default measured.",
        ),
    ] = None
    datastore: Datastore = None
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="Draft from earlier sessions with --history, too, and keep this one (texts stay on this machine).",
            rich_help_panel="Speculation",
        ),
    ] = False
    overlap: Annotated[
        bool | None,
        _option(
            "--overlap/--no-overlap",
            help="Draft while the target's pass runs, or never; by default where `specrun tune` found that it pays.",
        ),
    ] = None
    budget: Budget = None
    depth: Depth = None

    @property
    def is_open(self) -> bool:
        """Whether the size of the trees is left to specrun."""
        return self.budget is None and self.depth is None

    @property
    def is_auto(self) -> bool:
        """Whether everything is left to specrun."""
        return self.speculate == "auto" and self.method is None and self.is_open

    def plans(self) -> tuple[Plan, ...]:
        """The plan these options ask for; with `auto`, those to choose from. Raises UsageError for impossible ones."""
        from specrun.speculation.drafters.chain import CHAIN
        from specrun.speculation.drafters.specexec import SPECEXEC
        from specrun.speculation.method import OFF
        from specrun.speculation.plan import MAX_BUDGET

        if self.depth is not None and not 0 <= self.depth < MAX_BUDGET:
            raise UsageError(f"--depth must be between 0 and {MAX_BUDGET - 1}; got {self.depth}")
        if self.method is not None:
            return (self._plan_of_method(self.method),)
        if self.growth_map:
            raise UsageError("--growth-map goes with --method sequoia or sequoia-match")
        if self.speculate == "off" or self.budget == 1:
            return (OFF.plan(),)
        chain = CHAIN.plan(depth=self.depth if self.depth is not None else _CHAIN)
        if self.speculate == "chain":
            return (chain,)
        tree = SPECEXEC.plan(
            self.budget if self.budget is not None else _BUDGET, self.depth if self.depth is not None else _DEPTH
        )
        return (tree,) if self.speculate == "tree" else (tree, OFF.plan(), chain)

    def _plan_of_method(self, name: str) -> Plan:
        from specrun.speculation import registry
        from specrun.speculation.method import DATASTORE
        from specrun.speculation.shape import TreeShape

        if self.speculate != "auto":
            raise UsageError("--method and --speculate exclude each other; choose one")
        method = registry.find(name)
        if DATASTORE in method.needs and self.datastore is None:
            raise UsageError(f"--method {name} needs a --datastore; `specrun datastore` makes one")
        if self.overlap and not method.can_overlap:
            raise UsageError(
                f"--overlap goes with methods that have a draft model, and sample and match; {name} does not"
            )
        if self.growth_map is None:
            return method.plan(self.budget, self.depth)
        if not method.wants_shape or not self.is_open:
            raise UsageError("--growth-map goes with --method sequoia or sequoia-match, without --budget and --depth")
        try:
            return method.plan().shaped(TreeShape.from_text(self.growth_map.read_text(encoding="utf-8")))
        except OSError as error:
            raise UsageError(f"{self.growth_map} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"{self.growth_map} is no growth map: {error}") from error

    def check_constrained(self, grammar: Path | None, json_schema: Path | None) -> None:
        """Raises UsageError for a grammar with a method that draws its trees regardless of grammars."""
        from specrun.speculation import registry

        if (grammar or json_schema) and self.method and registry.find(self.method).samples:
            option = "--grammar" if grammar else "--json-schema"
            raise UsageError(f"{option} goes with methods that sample and match, not with {self.method}")

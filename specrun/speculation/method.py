"""Methods and plans: how to draft and accept, within which bounds, and how both are named.

A method and its plans name each other, as do a method and what its drafter is made from, so all three stand here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from specrun.errors import UsageError
from specrun.speculation.accept import AcceptanceRule
from specrun.speculation.drafter import Drafter
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.planning.guide import Guide
from specrun.speculation.sources.source_set import SourceSet
from specrun.speculation.tree import TreeShape

Kind = Literal["plain", "chain", "tree", "planner", "draft source", "acceptance rule"]
HeadKind = Literal["eagle3", "mtp", "dflash"]

# What a method may need besides the target.
DRAFT, ACCEPTANCE, PROFILE = "draft model", "acceptance vector", "profile"
# ... or this kind of head; the names are for people.
HEADS: dict[HeadKind, str] = {"eagle3": "EAGLE-3 head", "mtp": "MTP head", "dflash": "DFlash head"}

MAX_BUDGET = 2048  # nodes; the most that the papers' tables have
# Default bounds of a plan.
_DEEP = 16  # drafted tokens on a path, for methods that end a tree by themselves: 0.7 to that power is 0.003
# Nodes of a tree, and drafted tokens on a path of trees that fill their bounds: with a draft that is mostly right such
# trees commit 5 tokens a pass at T=0.8 and 8 greedily (docs/benchmarks/methods.md).
_BUDGET, _DEPTH = 16, 8
# Drafted tokens of other chains: most tokens a second where each is right with 0.7 and costs a tenth of a plain pass.
_CHAIN = 4


@dataclass(frozen=True)
class Drafting:
    """What a drafter is made from."""

    plan: Plan
    temperature: float  # of sampling; 0 is greedy
    source: ModelCandidates | None = None  # the draft model's
    guide: Guide | None = None  # cost tables and calibration
    guesses: SourceSet | None = None  # the draft sources, for a method that uses any

    def drafter(self) -> Drafter | None:
        """The plan's drafter, or None if the plan drafts nothing."""
        make = self.plan.method.drafter
        return make(self) if make and self.plan.drafts else None

    def need_source(self) -> ModelCandidates:
        assert self.source, f"{self.plan.method.name} needs a draft model"
        return self.source

    def need_shape(self) -> TreeShape:
        assert self.plan.shape, f"{self.plan.method.name} needs a tree shape"
        return self.plan.shape


def _label(plan: Plan) -> str:
    name = plan.method.name if plan.method.lossless else f"{plan.method.name} (lossy)"
    return f"{name}, {f'chain of {plan.depth}' if plan.is_chain else f'tree of {plan.size}'}"


def _options(plan: Plan) -> str:
    return f"--method {plan.method.name} --budget {plan.budget} --depth {plan.depth}"


@dataclass(frozen=True, eq=False)
class Method:
    """One way of drafting and accepting. `specrun methods` shows its kind, its paper, and where it pays."""

    name: str  # for `--method`
    kind: Kind
    paper: str
    pays: str  # a clause that completes "it pays ..."
    drafter: Callable[[Drafting], Drafter] | None  # makes its drafter; None for plain decoding
    rule: AcceptanceRule | None = None  # at temperatures above 0; at 0 all do the same. None: sample and match
    lossless: bool = True  # whether the text is the target's, token for token or in distribution
    needs: tuple[str, ...] = (DRAFT,)  # besides the target
    stops: bool = False  # whether it ends a tree by itself, so that the plan's depth is only a bound
    budget: int | None = None  # nodes of a tree if nobody says otherwise; None is a moderate number
    width: int | None = None  # nodes that one of its draft passes expands; None is the mean width of a level
    shape: Callable[[int, int], TreeShape] | None = None  # of its trees, if budget and depth decide it
    sources: tuple[str, ...] = ()  # names of the draft sources that it uses
    head: HeadKind | None = None  # the kind of head that drafts for it; None where any draft may
    without_draft: Method | None = None  # replaces it where the draft model does not pay; None for plain decoding
    label: Callable[[Plan], str] = _label  # the name of a plan
    options: Callable[[Plan], str] = _options  # the command-line options for a plan

    @property
    def samples(self) -> bool:
        """Whether its text for a seed differs from plain decoding's, because trees are drawn at random for its rule."""
        return self.rule is not None

    @property
    def needs_draft(self) -> bool:
        """Whether it uses a draft model or a head."""
        return DRAFT in self.needs or self.head is not None

    @property
    def is_adaptive(self) -> bool:
        """Whether cost tables decide the size of each of its trees."""
        return PROFILE in self.needs

    @property
    def wants_shape(self) -> bool:
        """Whether its plans need a tree shape that follows from measured acceptance."""
        return ACCEPTANCE in self.needs

    @property
    def is_chain(self) -> bool:
        """Whether its trees are single paths."""
        return self.kind == "chain" or self.shape is chain_shape

    def plan(self, budget: int | None = None, depth: int | None = None, width: int | None = None) -> Plan:
        """A plan of this method; bounds that are None get moderate values. Raises UsageError for impossible bounds."""
        if self.drafter is None:
            return Plan(self)
        if self.is_chain:
            depth = depth if depth is not None else _DEEP if self.stops else _CHAIN
            depth = depth if budget is None else min(depth, budget - 1)
            plan = Plan(self, budget=depth + 1, depth=depth)
        else:
            budget = (self.budget or _BUDGET) if budget is None else budget
            if depth is None:
                # Without draft passes, depth costs nothing: the tree may be as deep as it is large.
                depth = _DEEP if self.stops else _DEPTH if self.needs_draft else budget - 1
            depth = min(depth, max(budget - 1, 0))
            if width is None:
                width = self.width or -(-budget // max(depth, 1))  # the mean width of a level
            plan = Plan(self, budget, depth, width)
        return plan.shaped(self.shape(plan.budget, plan.depth)) if self.shape and plan.drafts else plan


def chain_shape(budget: int, depth: int) -> TreeShape:
    """One path of at most `depth` drafted tokens, within `budget` nodes."""
    return TreeShape.chain(min(depth, budget - 1))


@dataclass(frozen=True)
class Plan:
    """A method and the bounds of its trees; `Method.plan` makes one. Raises UsageError for impossible bounds."""

    method: Method
    budget: int = 1  # most nodes of a tree, root included
    depth: int = 0  # most drafted tokens on a path
    width: int = 1  # most nodes that one draft pass expands
    shape: TreeShape | None = None  # of every tree, for methods whose trees all have the same shape

    def __post_init__(self) -> None:
        # The depth comes first, because a chain's budget follows from it.
        if not 0 <= self.depth < MAX_BUDGET:
            raise UsageError(f"--depth must be between 0 and {MAX_BUDGET - 1}; got {self.depth}")
        if not 1 <= self.budget <= MAX_BUDGET:
            raise UsageError(f"--budget must be between 1 and {MAX_BUDGET}; got {self.budget}")

    def shaped(self, shape: TreeShape) -> Plan:
        """The same method with trees of this shape."""
        width = max(shape.expanded_widths, default=1)
        return replace(self, budget=shape.n_nodes, depth=shape.depth, width=width, shape=shape)

    def on_one_path(self) -> Plan:
        """The same for a target whose passes check one path: a shape becomes a path. Other plans keep to the limits."""
        if self.shape is None or self.shape.n_leaves < 2:
            return self
        return self.shaped(TreeShape.chain(self.shape.depth))

    def follows(self, method: Method) -> Plan:
        """The plan with the same bounds and another method."""
        return replace(self, method=method)

    @property
    def drafts(self) -> bool:
        """Whether anything is drafted; False for plain decoding."""
        return self.depth > 0

    @property
    def is_chain(self) -> bool:
        """Whether every tree is a single path."""
        return self.width == 1 and self.budget == self.depth + 1

    @property
    def can_shrink(self) -> bool:
        """Whether its trees may be smaller than its bounds, so that a pass with it may cost little."""
        return self.drafts and self.shape is None and (self.method.is_adaptive or not self.method.needs_draft)

    @property
    def smallest(self) -> Plan:
        """The plan with the smallest trees that it may have."""
        return replace(self, budget=2, depth=1) if self.can_shrink else self

    @property
    def size(self) -> str:
        """Budget and depth in words."""
        return f"{self.budget} nodes, {self.depth} deep"

    @property
    def options(self) -> str:
        """The command-line options that ask for this plan."""
        return self.method.options(self)

    def __str__(self) -> str:
        return self.method.label(self)


OFF: Method = Method(
    name="off",
    kind="plain",
    paper="",
    pays="where no other method does",
    drafter=None,
    needs=(),
    label=lambda _: "off",
    options=lambda _: "--speculate off",
)

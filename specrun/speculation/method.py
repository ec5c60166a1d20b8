"""What a method is: how it drafts, how what it drafts is accepted, and what is to be known of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from specrun.sampling import Sampler
from specrun.speculation.drafters.drafter import Drafter, DraftModel
from specrun.speculation.drafters.growth import CandidateSource, ModelCandidates
from specrun.speculation.drafters.guessed import Guesses
from specrun.speculation.papers import AcceptTree
from specrun.speculation.plan import LOSSY, Plan
from specrun.speculation.planning.guide import Guide
from specrun.speculation.shape import TreeShape

Kind = Literal["plain", "chain", "tree", "planner", "draft source", "acceptance rule"]

DRAFT, ACCEPTANCE, PROFILE, DATASTORE = "draft model", "acceptance vector", "profile", "datastore"


@dataclass(frozen=True)
class Drafting:
    """What a drafter is made of. guide: what is known of this machine and pair, if there is a profile. sources: those
    of the method.
    """

    plan: Plan
    sampler: Sampler
    draft: DraftModel | None = None
    guide: Guide | None = None
    sources: Guesses | None = None

    @property
    def model(self) -> DraftModel:
        """The draft model. Raises ValueError without one."""
        if self.draft is None:
            raise ValueError(f"{self.plan.method} needs a draft model")
        return self.draft

    @property
    def source(self) -> CandidateSource:
        """What the draft model proposes."""
        return ModelCandidates(self.model, self.sampler)

    @property
    def guesses(self) -> Guesses:
        """The draft sources. Raises ValueError without any."""
        if self.sources is None:
            raise ValueError(f"{self.plan.method} needs draft sources")
        return self.sources

    @property
    def shape(self) -> TreeShape:
        """The plan's own. Raises ValueError for a plan that was not given one."""
        if self.plan.shape is None:
            raise ValueError(f"{self.plan.method} needs a tree shape")
        return self.plan.shape


@dataclass(frozen=True)
class Method:
    """One way of drafting and accepting.

    pays: when, in a sentence. needs: beside the target. stops: whether it ends a tree by itself, so that a depth is
    only a bound. drafter: None for plain decoding. accept: how a tree is accepted at temperatures above 0; None is
    sample and match, which is also what all of these rules come to when greedy. shape: of its trees, from budget and
    depth, where that is all it takes. sources: the draft sources that it asks, by their names.
    """

    name: str
    kind: Kind
    paper: str
    pays: str
    drafter: Callable[[Drafting], Drafter] | None
    accept: AcceptTree | None = None
    needs: tuple[str, ...] = (DRAFT,)
    stops: bool = False
    shape: Callable[[int, int], TreeShape] | None = None
    sources: tuple[str, ...] = ()

    @property
    def lossless(self) -> bool:
        """Whether the text is the target's, to the token or in distribution."""
        return self.name not in LOSSY

    @property
    def samples(self) -> bool:
        """Whether its trees are drawn at random for a rule that compares distributions, so that the text of a seed is
        another than without speculation, though of the same distribution.
        """
        return self.accept is not None

    @property
    def can_overlap(self) -> bool:
        """Whether its trees may be drafted ahead: by a draft model that has better things to do than wait, and such
        that what is written does not hang on them, as how many there are is a matter of time.
        """
        return DRAFT in self.needs and not self.samples

    @property
    def wants_shape(self) -> bool:
        """Whether its plans need a tree shape that follows from measured acceptance."""
        return ACCEPTANCE in self.needs

    @property
    def is_chain(self) -> bool:
        """Whether it drafts one path."""
        return self.kind == "chain" or self.shape is chain_shape

    def plan(self, budget: int | None = None, depth: int | None = None) -> Plan:
        """A plan of this method; sizes left open are moderate. Raises UsageError for sizes that cannot be."""
        if self.name == "off":
            return Plan.off()
        if self.is_chain:
            drafted = depth if depth is not None else 16 if self.stops else 4
            plan = Plan.chain(min(drafted, budget - 1) if budget is not None else drafted, self.name)
        else:
            budget = 16 if budget is None else budget
            if depth is None:
                # Where a guess costs no draft pass, the tree may be as deep as it is large.
                depth = 16 if self.stops else 8 if DRAFT in self.needs else budget - 1
            if PROFILE in self.needs:
                return replace(Plan.adaptive(budget, depth, 16), method=self.name)
            plan = Plan.tree(budget, depth, self.name)
        return plan.shaped(self.shape(plan.budget, plan.depth)) if self.shape and plan.depth else plan


def chain_shape(budget: int, depth: int) -> TreeShape:
    """One path of at most `depth` drafted tokens, within `budget` nodes."""
    return TreeShape.chain(min(depth, budget - 1))

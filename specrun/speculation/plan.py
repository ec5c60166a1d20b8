"""What a pass may cost: no speculation, a chain or a tree, and how large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specrun.errors import UsageError

Method = Literal["off", "chain", "tree", "adaptive"]

MAX_BUDGET = 1024


@dataclass(frozen=True)
class Plan:
    """off, chain, tree (SpecExec's, always of that size), or adaptive (a tree of at most that size, each step's own
    size following from cost tables). budget: nodes of a tree, root included. depth: drafted tokens on its longest
    path. width: nodes that one draft pass expands.

    Raises UsageError for a budget or depth that cannot be.
    """

    method: Method
    budget: int = 1
    depth: int = 0
    width: int = 1

    def __post_init__(self) -> None:
        # The depth first: a chain's budget follows from it.
        if not 0 <= self.depth < MAX_BUDGET:
            raise UsageError(f"--depth must be between 0 and {MAX_BUDGET - 1}; got {self.depth}")
        if not 1 <= self.budget <= MAX_BUDGET:
            raise UsageError(f"--budget must be between 1 and {MAX_BUDGET}; got {self.budget}")

    @classmethod
    def off(cls) -> Plan:
        """Plain decoding."""
        return cls("off")

    @classmethod
    def chain(cls, depth: int) -> Plan:
        """One path of `depth` drafted tokens."""
        return cls("chain", budget=depth + 1, depth=depth)

    @classmethod
    def tree(cls, budget: int, depth: int) -> Plan:
        """A tree of at most `budget` nodes and `depth` levels; a draft pass expands the mean width of a level."""
        depth = min(depth, max(budget - 1, 0))
        return cls("tree", budget=budget, depth=depth, width=-(-budget // max(depth, 1)))

    @classmethod
    def adaptive(cls, budget: int, depth: int, width: int) -> Plan:
        """A tree of at most `budget` nodes and `depth` levels, at most `width` nodes to a draft pass."""
        return cls("adaptive", budget=budget, depth=min(depth, max(budget - 1, 0)), width=width)

    def __str__(self) -> str:
        if self.method == "off":
            return "off"
        if self.method == "chain":
            return f"chain of {self.depth}"
        size = f"{self.budget} nodes, {self.depth} deep"
        return f"tree of {size}" if self.method == "tree" else f"adaptive tree of at most {size}"

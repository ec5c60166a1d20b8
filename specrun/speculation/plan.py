"""What a pass may cost: by which method, and how large a tree."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specrun.errors import UsageError
from specrun.speculation.shape import TreeShape

MAX_BUDGET = 1024
LOSSY = frozenset({"typical"})  # methods that change what is written, not only how fast; shown as that everywhere


@dataclass(frozen=True)
class Plan:
    """A method of `specrun.speculation.registry` and the bounds of its trees.

    budget: nodes of a tree, root included. depth: drafted tokens on its longest path. width: nodes that one draft
    pass expands. shape: of every tree, for methods whose trees all have one. overlap: whether the draft works on
    while the target's pass runs.

    Raises UsageError for a budget or depth that cannot be.
    """

    method: str
    budget: int = 1
    depth: int = 0
    width: int = 1
    shape: TreeShape | None = None
    overlap: bool = False

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
    def chain(cls, depth: int, method: str = "chain") -> Plan:
        """One path of `depth` drafted tokens."""
        return cls(method, budget=depth + 1, depth=depth)

    @classmethod
    def tree(cls, budget: int, depth: int, method: str = "specexec") -> Plan:
        """A tree of at most `budget` nodes and `depth` levels; a draft pass expands the mean width of a level."""
        depth = min(depth, max(budget - 1, 0))
        return cls(method, budget=budget, depth=depth, width=-(-budget // max(depth, 1)))

    @classmethod
    def adaptive(cls, budget: int, depth: int, width: int) -> Plan:
        """A tree of at most `budget` nodes and `depth` levels, at most `width` nodes to a draft pass, each step's own
        size following from cost tables.
        """
        return cls("adaptive", budget=budget, depth=min(depth, max(budget - 1, 0)), width=width)

    def shaped(self, shape: TreeShape) -> Plan:
        """The same method with trees of this shape."""
        width = max(shape.expanded_widths, default=1)
        return replace(self, budget=shape.n_nodes, depth=shape.depth, width=width, shape=shape)

    @property
    def is_chain(self) -> bool:
        """Whether its trees have one path: one node to a level, and no more of them expanded."""
        return self.width == 1 and self.budget == self.depth + 1

    def __str__(self) -> str:
        return f"{self._name()}, drafted ahead" if self.overlap else self._name()

    def _name(self) -> str:
        if self.method == "off":
            return "off"
        if self.method == "chain":
            return f"chain of {self.depth}"
        size = f"{self.budget} nodes, {self.depth} deep"
        if self.method == "specexec":
            return f"tree of {size}"
        if self.method in ("adaptive", "merged"):
            return f"adaptive tree of at most {size}{', with draft sources' * (self.method == 'merged')}"
        name = f"{self.method} (lossy)" if self.method in LOSSY else self.method
        return f"{name}, {f'chain of {self.depth}' if self.is_chain else f'tree of {size}'}"

"""A plan: the method by which a pass drafts and accepts, and the bounds of its token tree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specrun.errors import UsageError
from specrun.speculation.shape import TreeShape

if TYPE_CHECKING:
    from specrun.speculation.method import Method

MAX_BUDGET = 2048  # nodes; the most that the papers' tables have


@dataclass(frozen=True)
class Plan:
    """A method and the bounds of its trees; `Method.plan` makes one. Raises UsageError for impossible bounds.

    method: how to draft and accept.
    budget: most nodes of a tree, root included.
    depth: most drafted tokens on a path.
    width: most nodes that one draft pass expands.
    shape: the shape of every tree, for methods whose trees all have the same one.
    overlap: whether to draft while the target's pass runs.
    """

    method: Method
    budget: int = 1
    depth: int = 0
    width: int = 1
    shape: TreeShape | None = None
    overlap: bool = False

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
        """The same method for a target whose passes check one path: a fixed shape becomes a path of its depth.

        Drafters without a fixed shape keep to the leaf paths that the limits allow.
        """
        if self.shape is None or self.shape.n_leaves < 2:
            return self
        return self.shaped(TreeShape.chain(self.shape.depth))

    def follows(self, method: Method) -> Plan:
        """The plan with the same bounds and another method, without overlap."""
        return replace(self, method=method, overlap=False)

    @property
    def drafts(self) -> bool:
        """Whether anything is drafted; False for plain decoding."""
        return self.depth > 0

    @property
    def is_chain(self) -> bool:
        """Whether every tree is a single path."""
        return self.width == 1 and self.budget == self.depth + 1

    @property
    def caution(self) -> int:
        """A rank by which a plan is preferred to one of a higher rank that is not faster by more than the error.

        0 is plain decoding; then come draft sources alone, adaptive trees, those with draft sources, chains, fixed
        trees, and drafting ahead. An adaptive tree can be any chain or nothing, and follows a text that is easier or
        harder than those it was measured on; of a fixed plan only the measured texts are known.
        """
        if self.overlap:
            return 6
        if not self.method.needs_draft:
            return int(self.drafts)
        if self.method.is_adaptive:
            return 3 if self.method.sources else 2
        return 4 if self.is_chain else 5

    @property
    def size(self) -> str:
        """Budget and depth in words."""
        return f"{self.budget} nodes, {self.depth} deep"

    @property
    def options(self) -> str:
        """The command-line options that ask for this plan."""
        return self.method.options(self)

    def __str__(self) -> str:
        return f"{self.method.label(self)}, drafted ahead" if self.overlap else self.method.label(self)

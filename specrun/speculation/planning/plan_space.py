"""The bounds of the plans that `specrun tune` considers for a pair on a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specrun.speculation.planning.costs import CostModel

# Most committed tokens of a pass at the greatest depth that is considered, which is 16. A tree whose pass takes as long
# as this many passes over one token cannot pay.
MOST_TOKENS = 17


@dataclass(frozen=True)
class PlanSpace:
    """The bounds of the plans to consider.

    costs: measured costs of passes.
    largest: most nodes of a tree.
    ctx: context length, in tokens, at which costs are compared.
    acceptance: for each k, the chance that the draft's k-th candidate is the accepted one.
    """

    costs: CostModel
    largest: int
    ctx: int
    acceptance: Sequence[float]

    @property
    def sizes(self) -> list[int]:
        """The measured sizes of a target pass that a tree may have."""
        return [n for n in self.costs.target.sizes if n <= self.largest]

    @property
    def largest_affordable(self) -> int:
        """The nodes of the largest tree whose pass pays if it commits MOST_TOKENS."""
        most_ms = MOST_TOKENS * self.costs.plain_ms(self.ctx)
        return max(n for n in self.sizes if self.costs.target.ms(n, self.ctx) < most_ms)

    @property
    def draft_width(self) -> int:
        """The largest number of nodes of a draft pass that was measured; 1 without a draft."""
        return self.costs.draft.largest if self.costs.draft else 1

    def may_pay(self, budget: int, depth: int) -> bool:
        """Whether a tree of `budget` nodes would pay if a whole path of `depth` drafted tokens were accepted."""
        costs = self.costs
        ms = costs.target.ms(budget, self.ctx) + depth * costs.level_ms(1, self.ctx) + costs.overhead.step
        return (depth + 1) / ms > 1 / costs.plain_ms(self.ctx)

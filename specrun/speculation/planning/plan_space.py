"""The bounds of the plans that `specrun tune` considers for a pair on a machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.sequoia import expected_lengths

# A pass that takes as long as this many passes over one token is not timed: hardly any tree commits so many tokens.
MOST_TOKENS = 17
_LEAST_CHANCE = 0.01  # least chance that a path is accepted down to the greatest depth; chosen by hand
_NEARLY = 0.75  # share of the best rate; trees that follow each text's own chances may be larger than static ones
_DEPTH_BOUNDS = (16, 64)  # of the greatest depth: stretches of a text are easier than its mean; more has not paid


def deepest(costs: CostModel, acceptance: Sequence[float]) -> int:
    """The greatest depth that could pay: that of the last level whose chance to be reached is worth its time.

    A level adds at most the chance that all best candidates down to it are accepted. It costs at least its draft pass
    and what one more node adds to the target's pass; meanwhile plain decoding would write time / plain tokens.
    acceptance: as in `PlanSpace`.
    """
    least, most = _DEPTH_BOUNDS
    best = acceptance[0]
    if best <= 0.0 or costs.draft is None:
        return least
    if best >= 1.0:
        return most
    ctx = costs.draft.times[0].ctx
    target = costs.target
    node_ms = min(((target.ms(n, ctx) - target.ms(1, ctx)) / (n - 1) for n in target.sizes if n > 1), default=0.0)
    worth = max((costs.level_ms(1, ctx) + max(node_ms, 0.0)) / costs.plain_ms(ctx), _LEAST_CHANCE)
    return min(max(int(math.log(min(worth, 1.0)) / math.log(best)), least), most)


def largest_that_pays(costs: CostModel, acceptance: Sequence[float], most: int) -> int:
    """The nodes of the largest tree, up to `most`, that is expected to be nearly as fast as that of the best size.

    The tree of each size is the best static one of the best depth. acceptance: as in `PlanSpace`.
    """
    if costs.draft is None:
        return most
    ctx = costs.draft.times[0].ctx
    sizes = [n for n in costs.target.sizes if n <= most]
    most_depth = _DEPTH_BOUNDS[0]
    lengths = expected_lengths(acceptance, max(sizes), most_depth).lengths

    def rate(n: int) -> float:
        ms = costs.target.ms(n, ctx)
        levels = (depth * costs.level_ms(-(-(n - 1) // depth), ctx) for depth in range(1, min(n, most_depth + 1)))
        return max(
            (tokens / (ms + level) for tokens, level in zip(lengths[n, 1:], levels, strict=False)), default=1 / ms
        )

    best = max(map(rate, sizes))
    return max(n for n in sizes if rate(n) >= _NEARLY * best)


@dataclass(frozen=True)
class PlanSpace:
    """The bounds of the plans to consider."""

    costs: CostModel  # measured costs of passes
    largest: int  # most nodes of a tree
    ctx: int  # context length, in tokens, at which costs are compared
    acceptance: Sequence[float]  # for each k, the chance that the draft's k-th candidate is the accepted one

    @property
    def depth(self) -> int:
        """The greatest depth that could pay."""
        return deepest(self.costs, self.acceptance)

    def depths(self, wanted: Sequence[int]) -> list[int]:
        """The depths among `wanted` that could pay."""
        return [depth for depth in wanted if depth <= self.depth]

    @property
    def sizes(self) -> list[int]:
        """The measured sizes of a target pass that a tree may have."""
        return [n for n in self.costs.target.sizes if n <= self.largest]

    @property
    def largest_affordable(self) -> int:
        """The nodes of the largest tree whose pass pays if a whole path is accepted."""
        most_ms = (self.depth + 1) * self.costs.plain_ms(self.ctx)
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

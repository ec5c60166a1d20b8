"""What a benchmark measures: the names of its rows, the sizes of their plans, and on which texts."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import Method, Plan
from specrun.speculation.registry import ALIASES, METHODS
from specrun.speculation.shape import TreeShape

# Sizes among which the best chain and the best tree are chosen: depths, and (budget, depth).
CHAIN_DEPTHS = (2, 3, 4, 6, 8, 12, 16)
TREE_SIZES = ((4, 2), (8, 4), (16, 6), (24, 8), (32, 8), (32, 12), (48, 10), (64, 12))
SWEEP_BUDGETS = (4, 8, 16, 24, 32, 48, 64)
SWEEP_DEPTHS = (2, 4, 6, 8, 12, 16)

# Names of rows: "chain" and "tree" have the best size, "auto" is what runs without options.
OFF_ROW, CHAIN_ROW, TREE_ROW, AUTO_ROW = "off", "chain", "tree", "auto"
ROWS = (OFF_ROW, CHAIN_ROW, TREE_ROW, AUTO_ROW)
ALL = (*METHODS, AUTO_ROW)
OVERLAP = "+overlap"  # ends the name of a row that drafts while the target's passes run
NAMES = tuple(dict.fromkeys((*ROWS, *ALL, *(name + OVERLAP for name, method in METHODS.items() if method.can_overlap))))


@dataclass(frozen=True)
class BenchSettings:
    """What to measure."""

    sampling: SamplingParameters
    max_tokens: int  # tokens of every answer; text goes on past its end, so that all rows write the same count
    repetitions: int
    methods: tuple[str, ...] = ROWS  # names of rows beside `off`
    budgets: tuple[int, ...] = SWEEP_BUDGETS  # of the grid
    depths: tuple[int, ...] = SWEEP_DEPTHS  # of the grid
    growth_map: TreeShape | None = None  # the shape of trees that have the same one in every pass
    raw: bool = False  # continue the prompts as they are, without the chat template

    def largest_plan(self, is_sweep: bool) -> Plan:
        """The plan for whose trees the contexts must have room."""
        sizes = [*self.budgets, *(d + 1 for d in self.depths)] if is_sweep else [budget for budget, _ in TREE_SIZES]
        return SPECEXEC.plan(max(*sizes, self.growth_map.n_nodes if self.growth_map else 1), 16)


def method_of(row: str) -> Method | None:
    """The method that a row names; None for `auto`."""
    plain = row.removesuffix(OVERLAP)
    return METHODS.get(ALIASES.get(plain, plain))

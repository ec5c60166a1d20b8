"""What a head costs and what it would bring: hours, disk, and by a cost table tokens a pass and speed."""

from __future__ import annotations

from typing import NamedTuple

from specrun.making.measuring import best_tree
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime

# What is expected of a head before it is made: as much as one brought that was made by the same command.
REFERENCE = "SmolLM2-135M's of two hours on two cores, of which 56 % agreed"
REFERENCE_CHANCES = [0.565, 0.100, 0.044, 0.033, 0.022, 0.022]  # docs/make-head.md
_HEAD_BYTES = 34 / 32  # of a weight in Q8_0

N_RANKS = 16  # most candidates of a node whose chances are counted
_CTX = 64  # tokens in the KV cache at which passes are compared


class Agreement(NamedTuple):
    """How often a head agrees with the target on held-out texts, from 0 to 1.

    same, overlap: for each level of a draft, how often both rank the same token first, and the mean overlap of their
    distributions at temperature 1. chances: for each k, how often the target's first token is the head's k-th.
    """

    same: list[float]
    overlap: list[float]
    chances: list[float]

    @property
    def text(self) -> str:
        """For people: the first level, and the last that was measured."""
        return f"{self.same[0]:.0%} agree at level 1, {self.same[-1]:.0%} at level {len(self.same)}"


class Gain(NamedTuple):
    """What a head would bring: the tree that would be the fastest, the tokens that it commits a pass, and the speed of
    both as a multiple of plain decoding.
    """

    tree: str
    tokens_per_pass: float
    speedup: float

    def __str__(self) -> str:
        speed = f"{self.speedup:.2f} times plain decoding" if self.speedup > 1 else "slower than plain decoding"
        return f"{self.tokens_per_pass:.1f} tokens a pass with a {self.tree}, {speed}"


def head_bytes(n_weights: int) -> float:
    """Bytes of so many weights of a head, as it is written."""
    return _HEAD_BYTES * n_weights


def gain(chances: list[float], target: CostTable, head_share: float) -> Gain:
    """The estimate for a head with these `chances` (see `Agreement`), the same at every node of a tree.

    target: times of the target's passes. head_share: bytes that a pass of the head reads, to the target's; it is taken
    to cost that share of the target's pass. Where the target is streamed and the head is not, it costs less.
    """
    draft = CostTable([PassTime(n, _CTX, head_share * target.ms(n, _CTX)) for n in target.sizes])
    tree, speedup = best_tree(chances, CostModel(target, draft), target.ms(1, _CTX))
    name = f"chain of {tree.depth}" if tree.n_leaves == 1 else f"tree of {tree.n_nodes} nodes, {tree.depth} deep"
    return Gain(name, tree.expected(chances), speedup)

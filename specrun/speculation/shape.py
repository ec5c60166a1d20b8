"""The shape of a token tree without its tokens: static trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from specrun.speculation.tree import NO_PARENT, children_of, depths_of

MAX_LEAVES = 256  # leaf paths of a tree: LLAMA_MAX_SEQ in llama.cpp's llama-cparams.h


@dataclass(frozen=True)
class TreeShape:
    """A tree that is the same in every pass. The i-th child of a node is the draft's i-th candidate after it.

    parents: the parent of every node in depth-first order, best-ranked child first; parents[0] == -1.
    """

    parents: tuple[int, ...]

    @classmethod
    def of_children(cls, counts: Sequence[int]) -> TreeShape:
        """The tree whose i-th node in depth-first order has counts[i] children. Raises ValueError if there is none."""
        if any(count < 0 for count in counts) or sum(counts) != len(counts) - 1:
            raise ValueError(f"{len(counts)} nodes with {sum(counts)} children in all are no tree")
        parents: list[int] = []
        waiting = [NO_PARENT]  # the parent of every node that is still to come
        for node, count in enumerate(counts):
            if not waiting:
                raise ValueError(f"the tree is complete before node {node}")
            parents.append(waiting.pop())
            waiting += [node] * count
        return cls(tuple(parents))

    @classmethod
    def branching(cls, counts: Sequence[int]) -> TreeShape:
        """The tree in which every node of level i has counts[i] children, 1 or more."""
        parents: list[int] = []
        waiting = [(NO_PARENT, 0)]  # the parent and the level of every node that is still to come
        while waiting:
            parent, level = waiting.pop()
            if level < len(counts):
                waiting += [(len(parents), level + 1)] * counts[level]
            parents.append(parent)
        return cls(tuple(parents))

    @classmethod
    def chain(cls, depth: int) -> TreeShape:
        """One path of `depth` drafted tokens; depth 0 is the root alone."""
        return cls(tuple(range(NO_PARENT, depth)))

    @classmethod
    def forked(cls, budget: int, depth: int, stem: int = 0) -> TreeShape:
        """As many paths as fit that have their first `stem` tokens in common, as deep as `depth` allows, but shorter
        where otherwise not even two would fit. SpecInfer (arXiv 2305.09781, section 6.1) has <1,1,3,1,1,1,1,1>, SpecTr
        (arXiv 2310.15141) up to 8 paths of 8 tokens, which is a budget of 65. budget: at least 2.
        """
        stem = max(min(stem, depth - 1, budget - 3), 0)
        room = budget - 1 - stem
        length = min(depth - stem, max(room // 2, 1))
        return cls.branching([*[1] * stem, min(room // length, MAX_LEAVES), *[1] * (length - 1)])

    @classmethod
    def doubling(cls, budget: int, depth: int) -> TreeShape:
        """Two children for every node on as many levels as fit; what is left of the budget adds levels of one child
        each, and where it does not reach for one, or `depth` forbids it, more children, the first level first: the
        2-2-2 of RSD-C (arXiv 2402.14160), and the 4-2-2 of multi-candidate sampling's code (arXiv 2401.06706), a budget
        of 29.
        """

        def fits(counts: Sequence[int]) -> bool:
            widths = [prod(counts[:level]) for level in range(len(counts) + 1)]
            return sum(widths) <= budget and widths[-1] <= MAX_LEAVES

        counts: list[int] = []
        for n in (2, 1):
            while len(counts) < depth and fits([*counts, n]):
                counts.append(n)
        for level in range(len(counts)):
            while fits(wider := [*counts[:level], counts[level] + 1, *counts[level + 1 :]]):
                counts = wider
        return cls.branching(counts)

    @property
    def n_nodes(self) -> int:
        """Number of nodes, root included."""
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Edges from the root to each node."""
        return tuple(depths_of(self.parents))

    @property
    def depth(self) -> int:
        """Number of drafted tokens on the longest path."""
        return max(self.depths)

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of each node, by rank."""
        return children_of(self.parents)

    @property
    def child_counts(self) -> list[int]:
        """Number of children of each node in depth-first order, which determines the shape."""
        return list(map(len, self.children))

    @cached_property
    def expanded_widths(self) -> tuple[int, ...]:
        """Number of nodes with children on each level but the last: the sizes of the draft passes."""
        counts = Counter(self.depths[node] for node, below in enumerate(self.children) if below)
        return tuple(counts[level] for level in range(self.depth))

    @property
    def n_leaves(self) -> int:
        """Number of leaf paths; each takes a sequence id of llama.cpp."""
        return self.children.count([])

    def expected(self, acceptance: Sequence[float]) -> float:
        """Expected committed tokens a pass: the sum of the chances that each node is accepted. The root's 1 stands for
        the target's own token.

        acceptance: p_k, the chance that a node's k-th candidate is accepted and the k - 1 before it are not; 0 beyond
            its end.
        """
        chances = [1.0] + [0.0] * (self.n_nodes - 1)
        for node, below in enumerate(self.children):
            for child, p in zip(below, acceptance, strict=False):
                chances[child] = chances[node] * p
        return float(np.array(chances).sum())

    def cut(self, max_nodes: int, max_depth: int) -> TreeShape:
        """The sub-tree of the first `max_nodes` nodes (the root always stays) of at most `max_depth` levels."""
        kept = [node for node in range(self.n_nodes) if self.depths[node] <= max(max_depth, 0)][: max(max_nodes, 1)]
        place = {node: i for i, node in enumerate(kept)}
        return TreeShape((NO_PARENT, *(place[self.parents[node]] for node in kept[1:])))

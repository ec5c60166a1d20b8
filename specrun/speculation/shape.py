"""The shape of a token tree without its tokens: static trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.tree import NO_PARENT, ROOT, children_of, depths_of

Chances = NDArray[np.float64]

MAX_LEAVES = 256  # leaf paths of a tree: LLAMA_MAX_SEQ in llama.cpp's llama-cparams.h


def acceptance_vector(acceptance: Sequence[float]) -> Chances:
    """float64[k]: p_k, the chance that the k-th candidate is accepted and the k - 1 before it are not.

    Raises ValueError for anything but a list of numbers from 0 to 1.
    """
    vector = np.asarray(acceptance, np.float64)
    # `not all(...)`, as comparisons with nan are false.
    if vector.ndim != 1 or not ((vector >= 0) & (vector <= 1)).all():
        raise ValueError("acceptance must be a list of numbers from 0 to 1")
    return vector


@dataclass(frozen=True)
class TreeShape:
    """A tree that is the same in every pass. The i-th child of a node is the draft's i-th candidate after it.

    parents: the parent of every node in depth-first order, best-ranked child first; parents[0] == -1. Raises ValueError
        for others. Methods take an acceptance vector (`acceptance_vector`); ranks beyond its end have the chance 0.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.parents or self.parents[ROOT] != NO_PARENT:
            raise ValueError("a tree needs its root first")
        path = [ROOT]
        for node, parent in enumerate(self.parents[1:], start=1):
            while path and path[-1] != parent:
                path.pop()
            if not path:
                raise ValueError(f"node {node} with parent {parent} is not in depth-first order")
            path.append(node)

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
        """The tree in which every node of level i has counts[i] children. Raises ValueError for a count below 1."""
        if any(count < 1 for count in counts):
            raise ValueError("every level needs at least one child to a node")
        children: list[int] = []
        levels = [0]
        while levels:
            level = levels.pop()
            children.append(counts[level] if level < len(counts) else 0)
            levels += [level + 1] * children[-1]
        return cls.of_children(children)

    @classmethod
    def chain(cls, depth: int) -> TreeShape:
        """One path of `depth` drafted tokens; depth 0 is the root alone."""
        return cls.branching([1] * depth)

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
    def child_counts(self) -> tuple[int, ...]:
        """Number of children of each node in depth-first order, which determines the shape."""
        return tuple(map(len, self.children))

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of each node, by rank."""
        return children_of(self.parents)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Rank of each node among its siblings, from 0; 0 at the root."""
        ranks = [0] * self.n_nodes
        for siblings in self.children:
            for rank, node in enumerate(siblings):
                ranks[node] = rank
        return tuple(ranks)

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """levels[d]: indices of the nodes at depth d, ascending."""
        levels: list[list[int]] = [[] for _ in range(self.depth + 1)]
        for node, depth in enumerate(self.depths):
            levels[depth].append(node)
        return tuple(tuple(level) for level in levels)

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of nodes of each level, the root's first."""
        return tuple(len(level) for level in self.levels)

    @property
    def expanded_widths(self) -> tuple[int, ...]:
        """Number of nodes with children on each level but the last: the sizes of the draft passes."""
        return tuple(sum(self.child_counts[node] > 0 for node in level) for level in self.levels[:-1])

    @property
    def n_leaves(self) -> int:
        """Number of leaf paths; each takes a sequence id of llama.cpp."""
        return self.child_counts.count(0)

    def chances(self, acceptance: Sequence[float]) -> Chances:
        """float64[n]: the chance that each node is accepted, the product of p[rank] along its path; 1 at the root."""
        p = acceptance_vector(acceptance).tolist()
        chances = [1.0]
        for parent, rank in zip(self.parents[1:], self.ranks[1:], strict=True):
            chances.append(chances[parent] * p[rank] if rank < len(p) else 0.0)
        return np.array(chances)

    def expected(self, acceptance: Sequence[float]) -> float:
        """Expected committed tokens a pass: the sum of `chances`. The root's 1 stands for the target's own token."""
        return float(self.chances(acceptance).sum())

    def cut(self, max_nodes: int, max_depth: int, acceptance: Sequence[float] | None = None) -> TreeShape:
        """The sub-tree of at most `max_nodes` nodes (the root always stays) and `max_depth` levels.

        Nodes keep their ranks, so a node is kept only with its parent and the siblings before it. The nodes with the
        highest chances under `acceptance` stay, or without it the first nodes in depth-first order.
        """
        if self.n_nodes <= max_nodes and self.depth <= max_depth:
            return self
        scores = self._falling(np.ones(self.n_nodes) if acceptance is None else self.chances(acceptance))
        shallow = np.flatnonzero(np.array(self.depths) <= max(max_depth, 0))
        # A stable sort keeps a parent, and earlier siblings, in front of nodes with the same score.
        kept = np.sort(shallow[np.argsort(-scores[shallow], kind="stable")[: max(max_nodes, 1)]])
        place = {node: i for i, node in enumerate(kept.tolist())}
        return TreeShape((NO_PARENT, *(place[self.parents[node]] for node in kept[1:].tolist())))

    def _falling(self, scores: Chances) -> Chances:
        """Lower each score, in place, to at most the scores of the node's parent and of the sibling before it."""
        before: dict[int, int] = {}  # parent -> its last child so far
        for node, parent in enumerate(self.parents[1:], start=1):
            scores[node] = min(scores[node], scores[before.get(parent, parent)])
            before[parent] = node
        return scores

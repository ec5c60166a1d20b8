"""The token tree, which the drafter proposes and the target checks in one pass, and its shape without tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]

ROOT = 0
NO_PARENT = -1
MAX_LEAVES = 256  # leaf paths of a tree: LLAMA_MAX_SEQ in llama.cpp's llama-cparams.h
_ROOT_PARENTS = np.array([NO_PARENT], np.int32)
_ROOT_SCORES = np.zeros(1)
_ROOT_PROBABILITIES = np.full(1, np.nan)


def n_in_order(path: Sequence[int]) -> int:
    """How many nodes of an accepted path, root first, are 0, 1, 2, ... and so lie in consecutive cells of the cache."""
    count = 1
    while count < len(path) and path[count] == count:
        count += 1
    return count


def depths_of(parents: Sequence[int]) -> list[int]:
    """Edges from the root to every node. parents: root first, every parent before its children."""
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return depths


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """Children of every node in the order of their indices. parents: root first."""
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents[1:], start=1):
        children[parent].append(node)
    return children


def depth_first(parents: Sequence[int], scores: Sequence[float]) -> list[int]:
    """The nodes in depth-first order, siblings by falling score. parents: root first, parents before their children."""
    sizes = [1] * len(parents)  # of the sub-tree of each node
    for node in range(len(parents) - 1, ROOT, -1):
        sizes[parents[node]] += sizes[node]
    order, places = [ROOT] * len(parents), [ROOT] * len(parents)
    free = [1] * len(parents)  # where the next child of each node goes
    families = np.lexsort((-np.asarray(scores), np.asarray(parents)))  # children follow the siblings of their parents
    for node in families.tolist():
        if node != ROOT:
            parent = parents[node]
            places[node] = place = free[parent]
            order[place] = node
            free[parent], free[node] = place + sizes[node], place + 1
    return order


def best_ways(parents: Sequence[int], scores: NDArray[np.float64]) -> tuple[list[int], list[float]]:
    """The child through which the best path goes on from each node, and the worth of that path: its sum of chances.

    Among equals the first child wins; NO_PARENT stands for the end of a path. parents: root first, parents before their
    children. scores: float64[n], log chances.
    """
    ways, worth = [NO_PARENT] * len(parents), np.exp(scores).tolist()
    for node in range(len(parents) - 1, ROOT - 1, -1):
        if ways[node] != NO_PARENT:
            worth[node] += worth[ways[node]]
        parent = parents[node]
        if node != ROOT and (ways[parent] == NO_PARENT or worth[node] >= worth[ways[parent]]):
            ways[parent] = node
    return ways, worth


@dataclass(frozen=True)
class TokenTree:
    """A tree of tokens in depth-first order, the likeliest child of every node first.

    The root (index 0) is the last committed token; every other node is a drafted token. In depth-first order the
    descendants of a node, and the leaves below it, have consecutive indices, and the likeliest leaf path comes first.
    `TokenTree.build` brings nodes into this order; the constructor expects it.
    """

    tokens: Int32Array  # int32[n]
    parents: Int32Array  # int32[n], parents[0] == -1 and parents[i] < i
    scores: NDArray[np.float64]  # the drafter's log probability that each is accepted; 0 at the root, never rising
    probabilities: NDArray[np.float64]  # the draft's of each node given its parent; nan where there is none

    @classmethod
    def build(
        cls,
        tokens: Sequence[int],
        parents: Sequence[int],
        scores: Sequence[float],
        probabilities: Sequence[float] | None = None,
    ) -> TokenTree:
        """A tree from nodes in any order in which the root comes first, and parents before their children."""
        order = depth_first(parents, scores)
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        new_parents = place[np.asarray(parents, np.int32)[order]]
        new_parents[ROOT] = NO_PARENT
        own = np.full(len(order), np.nan) if probabilities is None else np.asarray(probabilities, np.float64)
        return cls(
            tokens=np.asarray(tokens, np.int32)[order],
            parents=new_parents,
            scores=np.asarray(scores, np.float64)[order],
            probabilities=own[order],
        )

    @classmethod
    def root_only(cls, token: int) -> TokenTree:
        """A tree without drafted tokens: a pass over it is plain decoding. (Made often, so its arrays are shared.)"""
        tree = cls(np.array([token], np.int32), _ROOT_PARENTS, _ROOT_SCORES, _ROOT_PROBABILITIES)
        tree.__dict__["n_leaves"] = 1
        return tree

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> TokenTree:
        """A tree of one path: the root, then each token as the child of the token before it."""
        return cls.build(tokens, range(-1, len(tokens) - 1), [-float(i) for i in range(len(tokens))])

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> Int32Array:
        """int32[n]: edges from the root to each node."""
        return np.array(depths_of(self.parents.tolist()), np.int32)

    @property
    def depth(self) -> int:
        """Number of drafted tokens on the longest path."""
        return int(self.depths.max())

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of every node, likeliest first."""
        return children_of(self.parents.tolist())

    def child_with_token(self, node: int, token: int) -> int | None:
        """The child of `node` that holds `token`, or None."""
        return next((child for child in self.children[node] if self.tokens[child] == token), None)

    @cached_property
    def leaf_counts(self) -> Int32Array:
        """int32[n]: leaves below each node; 1 for a leaf itself."""
        counts = self._is_leaf.astype(np.int32).tolist()
        parents = self.parents.tolist()
        for node in range(len(parents) - 1, ROOT, -1):
            counts[parents[node]] += counts[node]
        return np.array(counts, np.int32)

    @property
    def _is_leaf(self) -> NDArray[np.bool_]:
        return np.bincount(self.parents[1:], minlength=len(self)) == 0

    @cached_property
    def first_leaves(self) -> Int32Array:
        """int32[n]: the first leaf path, in depth-first order, through each node, which `leaf_counts` paths share."""
        return (np.cumsum(self._is_leaf) - self._is_leaf).astype(np.int32)

    @cached_property
    def n_leaves(self) -> int:
        """Number of leaf paths; each takes a sequence id of llama.cpp."""
        return int(self._is_leaf.sum())

    def path_to(self, node: int) -> list[int]:
        """Node indices from the root to `node`, both included."""
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(int(self.parents[path[-1]]))
        return path[::-1]

    def keep(self, mask: NDArray[np.bool_]) -> TokenTree:
        """The sub-tree of the nodes in `mask` (bool[n]), which must contain the parent of every node in it."""
        kept = np.flatnonzero(mask)
        place = np.cumsum(mask) - 1
        parents = np.where(kept == ROOT, NO_PARENT, place[self.parents[kept]]).astype(np.int32)
        return TokenTree(self.tokens[kept], parents, self.scores[kept], self.probabilities[kept])

    def limited(self, max_nodes: int, max_leaves: int) -> TokenTree:
        """The likeliest sub-tree with at most `max_nodes` nodes (root included) and `max_leaves` leaf paths."""
        tree = self._with_nodes(max_nodes)
        if tree.n_leaves <= max_leaves:
            return tree
        # Leaf paths are chosen among all nodes, so that nodes which lose their path make room for others.
        return self._with_leaves(max_leaves)._with_nodes(max_nodes)

    def _with_nodes(self, max_nodes: int) -> TokenTree:
        """The `max_nodes` likeliest nodes."""
        if len(self) <= max_nodes:
            return self
        mask = np.ones(len(self), np.bool_)
        # Scores never rise along a path and a stable sort keeps parents first, so the best nodes form a tree.
        mask[np.argsort(-self.scores, kind="stable")[max(max_nodes, 1) :]] = False
        return self.keep(mask)

    def _with_leaves(self, max_leaves: int) -> TokenTree:
        """The sub-tree of `max_leaves` leaf paths with the largest sum of chances.

        Every node goes on to the child with the best path below it; its other children begin paths of their own. A path
        is worth less than the path it branches from, so the best paths form a tree.
        """
        parents = self.parents.tolist()
        ways, worth = best_ways(parents, self.scores)
        heads = [node for node in range(len(self)) if node == ROOT or ways[parents[node]] != node]
        mask = np.zeros(len(self), np.bool_)
        for node in sorted(heads, key=lambda head: -worth[head])[:max_leaves]:
            while node != NO_PARENT:
                mask[node] = True
                node = ways[node]
        return self.keep(mask)


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
    def of_nodes(cls, parents: Sequence[int], order: Sequence[int]) -> TreeShape:
        """The tree of the nodes in `order`, root first, and parents before their children. parents: of all nodes."""
        place = {node: i for i, node in enumerate(order)}
        return cls((NO_PARENT, *(place[parents[node]] for node in order[1:])))

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
        kept = [node for node in range(self.n_nodes) if self.depths[node] <= max(max_depth, 0)]
        return TreeShape.of_nodes(self.parents, kept[: max(max_nodes, 1)])

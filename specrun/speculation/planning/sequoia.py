"""Static trees with the most expected tokens a pass, and of these the fastest by measured costs.

Sequoia (arXiv 2402.12374): p_k is the chance that a node's k-th candidate is the accepted one, the same at every node.
A node is then accepted with the product of p along its path, and a tree is worth the sum over its nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from specrun.speculation.planning.costs import CostModel
from specrun.speculation.shape import MAX_LEAVES, TreeShape, acceptance_vector
from specrun.speculation.tree import NO_PARENT, ROOT

MAX_CHILDREN = 32
_PRICE_ROUNDS = 40


@dataclass(frozen=True)
class BestLengths:
    """The dynamic program's tables.

    acceptance: float64[k]. by_children: float64[depth + 1, k + 1, nodes + 1], [l][b][m] the best expected tokens a pass
    of at most m nodes on at most l levels where the root has b children; -inf where m nodes are too few.
    lengths: float64[nodes + 1, depth + 1], M[m][l], the best over b; 0 without a node.
    """

    acceptance: NDArray[np.float64]
    by_children: NDArray[np.float64]
    lengths: NDArray[np.float64]

    def fewest(self, n_nodes: int, depth: int) -> int:
        """Nodes with which M[n_nodes][depth] is reached; those beyond would have the chance 0."""
        return int(np.searchsorted(self.lengths[:, depth], self.lengths[n_nodes, depth]))

    def shape(self, n_nodes: int, depth: int, max_leaves: int = MAX_LEAVES) -> TreeShape:
        """The best tree within these bounds, with no node of chance 0 at its end.

        Exact where the best tree of all has few enough leaves. Otherwise the best for a falling acceptance vector, up
        to the last few nodes, and for any other a tree that may not be the best. Raises ValueError for no leaf.
        """
        if max_leaves < 1:
            raise ValueError(f"no tree has {max_leaves} leaves")
        parents: list[int] = []
        waiting = [(n_nodes, depth, NO_PARENT)]
        while waiting:
            size, levels, parent = waiting.pop()
            node = len(parents)
            parents.append(parent)
            waiting += [(child, levels - 1, node) for child in self._child_sizes(size, levels)]
        shape = TreeShape(tuple(parents))
        return shape if shape.n_leaves <= max_leaves else _with_leaves(self.acceptance, n_nodes, depth, max_leaves)

    def _child_sizes(self, n_nodes: int, depth: int) -> list[int]:
        """Nodes of the root's sub-trees in the best tree, the last child's first."""
        rest = self.fewest(n_nodes, depth)
        sizes = []
        for b in range(int(self.by_children[depth, :, rest].argmax()), 0, -1):
            before = self.by_children[depth, b - 1, b:rest][::-1]
            behind = self.acceptance[b - 1] * self.lengths[1 : rest - b + 1, depth - 1]
            sizes.append(1 + int((before + behind).argmax()))
            rest -= sizes[-1]
        return sizes


def expected_lengths(
    acceptance: Sequence[float], max_nodes: int, max_depth: int, max_children: int = MAX_CHILDREN
) -> BestLengths:
    """The tables for every number of nodes (root included) and levels up to the bounds.

    Ranks beyond the vector's end, or of chance 0 there, get no node. Raises ValueError for bounds below one node and no
    level, or a vector that holds no chances.
    """
    if max_nodes < 1 or max_depth < 0:
        raise ValueError(f"no tree has at most {max_nodes} nodes and {max_depth} levels")
    p = np.trim_zeros(acceptance_vector(acceptance)[:max_children], "b")
    best = np.full((max_depth + 1, len(p) + 1, max_nodes + 1), -np.inf)
    best[:, 0, 1:] = 1
    lengths = np.zeros((max_depth + 1, max_nodes + 1))
    lengths[0, 1:] = 1
    # Row i of the windows over `padded` is T[m - (max_nodes - i)] by m: the last child has max_nodes - i nodes.
    padded = np.full(2 * max_nodes + 1, -np.inf)
    windows = sliding_window_view(padded, max_nodes + 1)[1:max_nodes]
    for depth in range(1, max_depth + 1):
        for b in range(1, len(p) + 1) if max_nodes > 1 else ():
            padded[max_nodes:] = best[depth, b - 1]
            behind = p[b - 1] * lengths[depth - 1, max_nodes - 1 : 0 : -1]
            best[depth, b] = (windows + behind[:, None]).max(axis=0)
        lengths[depth, 1:] = best[depth, :, 1:].max(axis=0)
    return BestLengths(p, best, lengths.T)


def best_shape(
    acceptance: Sequence[float],
    n_nodes: int,
    depth: int,
    max_leaves: int = MAX_LEAVES,
    max_children: int = MAX_CHILDREN,
) -> TreeShape:
    """The tree with the most expected tokens a pass within the bounds (`BestLengths.shape`)."""
    return expected_lengths(acceptance, n_nodes, depth, max_children).shape(n_nodes, depth, max_leaves)


class _PricedTree:
    """The best tree of at most `max_leaves` leaves when every node costs `price` tokens a pass.

    A tree falls apart into as many paths as it has leaves: one from the root, each other one from a node that is not a
    first child, and on by first children. At a given price a path has the nodes whose chance exceeds it. For a falling
    acceptance vector a path is never worth more than the one that it branches off, so taking the best path next,
    again and again, is optimal.
    """

    def __init__(self, p: Sequence[float], price: float, depth: int, max_leaves: int) -> None:
        self._p = p
        self._price = price
        self._depth = depth
        self._powers = [p[0] ** i for i in range(depth)]
        self.children: list[list[int]] = [[]]
        # Paths that could begin now: (-worth, when it was found, parent, its chance and level, rank).
        self._heads: list[tuple[float, int, int, float, int, int]] = []
        self._n_found = 0
        self._follow(ROOT, 1.0, 0)
        for _ in range(max_leaves - 1):
            if not self._heads:
                break
            _, _, parent, chance, level, rank = heapq.heappop(self._heads)
            self._follow(self._add(parent), chance * p[rank], level + 1)
            self._find(parent, chance, level, rank + 1)

    def _add(self, parent: int) -> int:
        node = len(self.children)
        self.children[parent].append(node)
        self.children.append([])
        return node

    def _follow(self, node: int, chance: float, level: int) -> None:
        """Add first children as long as they are worth their price."""
        while level < self._depth and chance * self._p[0] > self._price:
            self._find(node, chance, level, 1)
            node, chance, level = self._add(node), chance * self._p[0], level + 1

    def _find(self, parent: int, parent_chance: float, level: int, rank: int) -> None:
        chance = parent_chance * self._p[rank] if rank < len(self._p) else 0.0
        if chance > self._price:
            ahead = self._powers[: self._depth - level]
            worth = sum(chance * power - self._price for power in ahead if chance * power > self._price)
            self._n_found += 1
            heapq.heappush(self._heads, (-worth, self._n_found, parent, parent_chance, level, rank))

    def shape(self) -> TreeShape:
        counts: list[int] = []
        waiting = [ROOT]
        while waiting:
            children = self.children[waiting.pop()]
            counts.append(len(children))
            waiting += reversed(children)
        return TreeShape.of_children(counts)


def _with_leaves(p: NDArray[np.float64], n_nodes: int, depth: int, max_leaves: int) -> TreeShape:
    """The tree of the lowest price of a node at which `n_nodes` are enough, found by bisection.

    As the price falls the nodes grow in number, now and then by more than one; what is then too many is cut.
    """
    chances = p.tolist()
    low, high = 0.0, 1.0
    tree = _PricedTree(chances, low, depth, max_leaves)
    for _ in range(_PRICE_ROUNDS):
        if len(tree.children) <= n_nodes:
            break
        price = (low + high) / 2
        found = _PricedTree(chances, price, depth, max_leaves)
        if len(found.children) >= n_nodes:
            low, tree = price, found
        else:
            high = price
    return tree.shape().cut(n_nodes, depth, chances)


@dataclass(frozen=True)
class Choice:
    """The static tree that is fastest by measured costs. ms: of a pass with its drafting. expected: tokens a pass.
    tokens_per_second: of the tree. plain_tokens_per_second: of plain decoding, which a tree of one node stands for.
    """

    shape: TreeShape
    ms: float
    expected: float
    tokens_per_second: float
    plain_tokens_per_second: float


def step_ms(shape: TreeShape, costs: CostModel, ctx: int) -> float:
    """Milliseconds of a step: the target's pass, a draft pass over the nodes with children of every level, our own."""
    drafting = sum(costs.level_ms(width, ctx) for width in shape.expanded_widths)
    return costs.target.ms(shape.n_nodes, ctx) + costs.overhead.step + drafting


def choose(
    acceptance: Sequence[float],
    costs: CostModel,
    ctx: int,
    max_nodes: int,
    max_depth: int,
    max_leaves: int = MAX_LEAVES,
) -> Choice:
    """The fastest of the best trees of every measured size and every depth, or the root alone if none pays.

    ctx: context length at which costs are judged.
    """
    table = expected_lengths(acceptance, min(max_nodes, costs.target.largest), max_depth)
    plain = 1e3 / costs.plain_ms(ctx)
    best = Choice(TreeShape.chain(0), costs.plain_ms(ctx), 1.0, plain, plain)
    for bound, n_nodes, depth in sorted(_bounds(table, costs, ctx, max_leaves), reverse=True):
        if bound <= best.tokens_per_second:
            break
        shape = table.shape(n_nodes, depth, max_leaves)
        ms, expected = step_ms(shape, costs, ctx), shape.expected(acceptance)
        if 1e3 * expected / ms > best.tokens_per_second:
            best = Choice(shape, ms, expected, 1e3 * expected / ms, plain)
    return best


def _bounds(table: BestLengths, costs: CostModel, ctx: int, max_leaves: int) -> Iterator[tuple[float, int, int]]:
    """(tokens a second that the tree cannot exceed, nodes, levels), so that few trees have to be made."""
    target = costs.target.row(ctx)
    level = float(costs.levels_row(ctx)[1:].min())
    largest, deepest = (n - 1 for n in table.lengths.shape)
    for n_nodes in costs.target.sizes:
        for depth in range(1, deepest + 1) if 1 < n_nodes <= largest else ():
            if table.lengths[n_nodes, depth] > table.lengths[n_nodes, depth - 1]:
                # A bound on the leaves can only make a tree smaller if it has more nodes than that.
                fewest = table.fewest(n_nodes, depth)
                ms = float(target[min(fewest, max_leaves) : fewest + 1].min()) + costs.overhead.step + depth * level
                yield 1e3 * float(table.lengths[n_nodes, depth]) / ms, n_nodes, depth

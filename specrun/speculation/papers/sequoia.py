"""Static trees with the most expected tokens a pass, and the fastest of them by measured costs.

Sequoia (arXiv 2402.12374) assumes that p_k, the chance that a node's k-th candidate is accepted, is the same at every
node. A node is then accepted with the product of p along its path, and the expected tokens are the sum over all nodes.

This vector p, the positional acceptance, is the mean over the positions of a text of vectors that are computed from the
logits of target and draft there: expected values over the noise, not the outcomes of single draws. It is that of sample
and match, for Sequoia's own rule as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from specrun.sampling import Distribution
from specrun.speculation.planning.calibration import MAX_RANK
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.shape import MAX_LEAVES, Chances, TreeShape, acceptance_vector
from specrun.speculation.tree import NO_PARENT, ROOT

MAX_CHILDREN = 32  # of a node
_PRICE_ROUNDS = 40  # bisections of the price of a node


def greedy_vector(choice: int, draft_row: NDArray[np.float32]) -> Chances:
    """float64[MAX_RANK] of one position for greedy decoding: 1 at the draft's rank of the target's choice.

    choice: the target's token. draft_row: float32 logits, which the choice may lie beyond.
    """
    vector = np.zeros(MAX_RANK)
    if choice < len(draft_row):
        above = draft_row > draft_row[choice]
        # Of tokens with equal logits the lower id ranks first.
        rank = int(above.sum()) + int((draft_row[:choice] == draft_row[choice]).sum())
        if rank < MAX_RANK:
            vector[rank] = 1.0
    return vector


def shared_noise_vector(p: Distribution, q: Distribution, rng: np.random.Generator, n_draws: int) -> Chances:
    """float64[MAX_RANK] of one position: the share of `n_draws` draws of the shared Gumbel noise (arXiv 2408.07978) in
    which the target's choice has each rank with the draft. p: the target's distribution. q: the draft's.
    """
    tokens = np.union1d(p.tokens, q.tokens)
    log_p, log_q = (_log(distribution, tokens) for distribution in (p, q))
    noise = rng.gumbel(size=(n_draws, len(tokens)))
    choices = (log_p + noise).argmax(axis=1)
    of_draft = log_q + noise
    own = np.take_along_axis(of_draft, choices[:, None], axis=1)
    ranks = (of_draft > own).sum(axis=1)[np.isfinite(own[:, 0])]
    return np.bincount(ranks[ranks < MAX_RANK], minlength=MAX_RANK) / n_draws


def _log(distribution: Distribution, tokens: NDArray[np.int64]) -> Chances:
    """float64[len(tokens)]: log probabilities of `tokens`, which contain those of the distribution, ascending."""
    logs = np.full(len(tokens), -np.inf)
    logs[np.searchsorted(tokens, distribution.tokens)] = np.log(distribution.probabilities)
    return logs


@dataclass(frozen=True)
class BestLengths:
    """The tables of the dynamic program."""

    acceptance: NDArray[np.float64]  # float64[k], the acceptance vector
    # float64[depth + 1, k + 1, nodes + 1]; [l][b][m] is the most expected tokens a pass with at most m nodes on at most
    # l levels where the root has b children, -inf if m nodes are too few.
    by_children: NDArray[np.float64]
    lengths: NDArray[np.float64]  # float64[nodes + 1, depth + 1]; [m][l] is the maximum over b, and 0 for m = 0

    def fewest(self, n_nodes: int, depth: int) -> int:
        """The fewest nodes that reach lengths[n_nodes][depth]; further nodes would have the chance 0."""
        return int(np.searchsorted(self.lengths[:, depth], self.lengths[n_nodes, depth]))

    def shape(self, n_nodes: int, depth: int, max_leaves: int = MAX_LEAVES) -> TreeShape:
        """The best tree within these bounds, without nodes of chance 0. Raises ValueError for `max_leaves` below 1.

        It is optimal if the best tree without a bound on leaves has at most `max_leaves`. Otherwise it is optimal but
        for the last few nodes if the acceptance vector falls, and may be worse if not.
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
        """Sizes of the sub-trees of the root's children in the best tree, the last child's first."""
        rest = self.fewest(n_nodes, depth)
        sizes = []
        for b in range(int(self.by_children[depth, :, rest].argmax()), 0, -1):
            before = self.by_children[depth, b - 1, b:rest][::-1]
            behind = self.acceptance[b - 1] * self.lengths[1 : rest - b + 1, depth - 1]
            sizes.append(1 + int((before + behind).argmax()))
            rest -= sizes[-1]
        return sizes


def expected_lengths(acceptance: Sequence[float], max_nodes: int, max_depth: int) -> BestLengths:
    """The tables for all trees of up to `max_nodes` nodes (root included) and `max_depth` levels below the root.

    Ranks beyond the vector's end, or in its trailing zeros, get no node. Raises ValueError for numbers out of range.
    """
    if max_nodes < 1 or max_depth < 0:
        raise ValueError(f"no tree has at most {max_nodes} nodes and {max_depth} levels")
    p = np.trim_zeros(acceptance_vector(acceptance)[:MAX_CHILDREN], "b")
    best = np.full((max_depth + 1, len(p) + 1, max_nodes + 1), -np.inf)
    best[:, 0, 1:] = 1
    lengths = np.zeros((max_depth + 1, max_nodes + 1))
    lengths[0, 1:] = 1
    # With T[m] = padded[max_nodes + m], row i of the windows is T[m - n] for every m, where n = max_nodes - 1 - i is
    # the size of the last child's sub-tree.
    padded = np.full(2 * max_nodes + 1, -np.inf)
    windows = sliding_window_view(padded, max_nodes + 1)[1:max_nodes]
    for depth in range(1, max_depth + 1):
        for b in range(1, len(p) + 1) if max_nodes > 1 else ():
            padded[max_nodes:] = best[depth, b - 1]
            behind = p[b - 1] * lengths[depth - 1, max_nodes - 1 : 0 : -1]
            best[depth, b] = (windows + behind[:, None]).max(axis=0)
        lengths[depth, 1:] = best[depth, :, 1:].max(axis=0)
    return BestLengths(p, best, lengths.T)


def best_shape(acceptance: Sequence[float], n_nodes: int, depth: int, max_leaves: int = MAX_LEAVES) -> TreeShape:
    """The tree with the most expected tokens a pass within the bounds; see `BestLengths.shape`."""
    return expected_lengths(acceptance, n_nodes, depth).shape(n_nodes, depth, max_leaves)


class _PricedTree:
    """The best tree of at most `max_leaves` leaves if every node costs `price` expected tokens.

    A tree splits into one path for each leaf. Each path begins at the root or at a node that is not a first child, and
    continues with first children as long as their chance exceeds the price. With a falling acceptance vector a path is
    never worth more than the path it branches off, so always adding the most valuable path next is optimal.
    """

    def __init__(self, p: Sequence[float], price: float, depth: int, max_leaves: int) -> None:
        self._p = p
        self._price = price
        self._depth = depth
        self._powers = [p[0] ** i for i in range(depth)]
        self.children: list[list[int]] = [[]]
        # A heap of paths that can be added: (-value, serial number, parent, its chance, its level, rank).
        self._heads: list[tuple[float, int, int, float, int, int]] = []
        self._n_offered = 0
        self._follow(ROOT, 1.0, 0)
        for _ in range(max_leaves - 1):
            if not self._heads:
                break
            _, _, parent, chance, level, rank = heapq.heappop(self._heads)
            self._follow(self._add(parent), chance * p[rank], level + 1)
            self._offer(parent, chance, level, rank + 1)

    def _add(self, parent: int) -> int:
        node = len(self.children)
        self.children[parent].append(node)
        self.children.append([])
        return node

    def _follow(self, node: int, chance: float, level: int) -> None:
        """Add first children from `node` on as long as their chance exceeds the price."""
        while level < self._depth and chance * self._p[0] > self._price:
            self._offer(node, chance, level, 1)
            node, chance, level = self._add(node), chance * self._p[0], level + 1

    def _offer(self, parent: int, parent_chance: float, level: int, rank: int) -> None:
        """Put the path that begins with the child of this rank on the heap if it is worth its price."""
        chance = parent_chance * self._p[rank] if rank < len(self._p) else 0.0
        if chance > self._price:
            ahead = self._powers[: self._depth - level]
            value = sum(chance * power - self._price for power in ahead if chance * power > self._price)
            self._n_offered += 1
            heapq.heappush(self._heads, (-value, self._n_offered, parent, parent_chance, level, rank))

    def shape(self) -> TreeShape:
        counts: list[int] = []
        waiting = [ROOT]
        while waiting:
            children = self.children[waiting.pop()]
            counts.append(len(children))
            waiting += reversed(children)
        return TreeShape.of_children(counts)


def _with_leaves(p: NDArray[np.float64], n_nodes: int, depth: int, max_leaves: int) -> TreeShape:
    """The tree of about `n_nodes` nodes, by bisection of the price of a node; nodes beyond `n_nodes` are cut."""
    chances = p.tolist()
    low, high = 0.0, 1.0
    tree = _PricedTree(chances, low, depth, max_leaves)
    for _ in range(_PRICE_ROUNDS):
        if len(tree.children) <= n_nodes:
            break
        price = (low + high) / 2
        priced = _PricedTree(chances, price, depth, max_leaves)
        if len(priced.children) >= n_nodes:
            low, tree = price, priced
        else:
            high = price
    return tree.shape().cut(n_nodes, depth, chances)


def pass_ms(shape: TreeShape, costs: CostModel, ctx: int) -> float:
    """Milliseconds of a target pass over `shape` after `ctx` tokens, with its draft passes and our own work."""
    drafting = sum(costs.level_ms(width, ctx) for width in shape.expanded_widths)
    return costs.target.ms(shape.n_nodes, ctx) + costs.overhead.step + drafting


def choose(
    acceptance: Sequence[float], costs: CostModel, ctx: int, largest: int, max_depth: int, max_leaves: int = MAX_LEAVES
) -> TreeShape:
    """The fastest of the best trees of each measured size and depth after `ctx` tokens, or the root if none pays."""
    table = expected_lengths(acceptance, min(largest, costs.target.largest), max_depth)
    best, best_rate = TreeShape.chain(0), 1e3 / costs.plain_ms(ctx)
    for bound, n_nodes, depth in sorted(_bounds(table, costs, ctx, max_leaves), reverse=True):
        if bound <= best_rate:
            break
        shape = table.shape(n_nodes, depth, max_leaves)
        rate = 1e3 * shape.expected(acceptance) / pass_ms(shape, costs, ctx)
        if rate > best_rate:
            best, best_rate = shape, rate
    return best


def _bounds(table: BestLengths, costs: CostModel, ctx: int, max_leaves: int) -> Iterator[tuple[float, int, int]]:
    """(upper bound of tokens per second, nodes, levels) for each tree, so that `choose` has to build only a few."""
    target = costs.target.row(ctx)
    level = float(costs.levels_row(ctx)[1:].min())
    largest, deepest = (n - 1 for n in table.lengths.shape)
    for n_nodes in costs.target.sizes:
        for depth in range(1, deepest + 1) if 1 < n_nodes <= largest else ():
            if table.lengths[n_nodes, depth] > table.lengths[n_nodes, depth - 1]:
                # The bound on leaves can make a tree smaller, but never smaller than `max_leaves` nodes.
                fewest = table.fewest(n_nodes, depth)
                ms = float(target[min(fewest, max_leaves) : fewest + 1].min()) + costs.overhead.step + depth * level
                yield 1e3 * float(table.lengths[n_nodes, depth]) / ms, n_nodes, depth

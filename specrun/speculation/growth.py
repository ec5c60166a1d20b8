"""Growing a token tree: the nodes offered so far, and the sources of candidates for further nodes."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import CandidateRows, Sampler
from specrun.speculation.drafter import DraftLimits, DraftModel, DraftNode
from specrun.speculation.planning.calibration import MAX_RANK
from specrun.speculation.sources.source_set import SourceSet
from specrun.speculation.tree import NO_PARENT, ROOT, TokenTree, best_ways

GUESSES = 4  # guesses of draft sources after a node; later ones are hardly ever right


class TreeGrowth:
    """All nodes offered so far. A node's id is its index in these lists; node 0 is the root.

    committed: the committed text, whose last token is the root.
    """

    def __init__(self, committed: Sequence[int]) -> None:
        self.committed = committed
        self.tokens = [committed[-1]]
        self.parents = [NO_PARENT]
        self.scores = array("d", [0.0])  # log chances that a node and all nodes above it are accepted
        self.depths = [0]
        self.probabilities = [1.0]  # the draft's, of each node among its siblings
        self._children: list[list[int]] = []
        self._guesses: dict[int, list[tuple[int, float]]] = {}

    @property
    def children(self) -> list[list[int]]:
        """The children of each node, in the order offered."""
        for node in range(len(self._children), len(self.tokens)):
            self._children.append([])
            if node != ROOT:
                self._children[self.parents[node]].append(node)
        return self._children

    def add(self, token: int, parent: int, score: float, probability: float) -> int:
        """Offer a child of `parent`; returns its id. A `probability` of nan: the draft model was not asked."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        self.depths.append(self.depths[parent] + 1)
        self.probabilities.append(probability)
        return len(self.tokens) - 1

    def add_ranked(self, token: int, parent: int, rank: int, probability: float) -> int:
        """Offer a child where scores only fix the order: siblings by rank, and never rising along a path."""
        return self.add(token, parent, self.scores[parent] - float(np.log(rank + 2)), probability)

    def add_likely(self, nodes: Sequence[int], rows: CandidateRows, sharpness: float, least: float) -> range:
        """Offer those of the candidates below each of `nodes` whose score is above `least`; returns their ids.

        sharpness: log probabilities are those of softmax(sharpness * scores of the candidates).
        """
        first = len(self.tokens)
        log_shares = rows.log_shares()
        sharpened = log_shares if sharpness == 1 else rows.log_shares(sharpness)
        scores = np.array([self.scores[node] for node in nodes])[:, None] + sharpened
        row, rank = (scores > least).nonzero()
        parents = [nodes[i] for i in row.tolist()]
        self.tokens += rows.tokens[row, rank].tolist()
        self.parents += parents
        self.scores.frombytes(scores[row, rank].tobytes())
        self.depths += [self.depths[parent] + 1 for parent in parents]
        self.probabilities += np.exp(log_shares[row, rank]).tolist()
        return range(first, len(self.tokens))

    def rescore(self, node: int, score: float) -> None:
        """Set the score of `node`, and change the scores of all nodes below it by the same amount."""
        change = score - self.scores[node]
        waiting = [node]
        while waiting:
            changed = waiting.pop()
            self.scores[changed] += change
            waiting += self.children[changed]

    def best(self, nodes: Iterable[int], count: int) -> list[int]:
        """The `count` nodes with the highest scores, best first. Among equals, the first that was offered wins."""
        ids = np.sort(np.fromiter(nodes, np.intp))
        return ids[np.argsort(-np.array(self.scores)[ids], kind="stable")[:count]].tolist()

    def worst_kept(self, budget: int) -> float:
        """The score of the budget-th best node, below which no node stays in the tree; -inf if there are fewer."""
        n = len(self.scores)
        return float(np.partition(self.scores, n - budget)[n - budget]) if n >= budget else -math.inf

    def open(self, nodes: Iterable[int], limits: DraftLimits) -> list[int]:
        """Those of `nodes` whose further children may stay in the tree. Those of the others never will."""
        # No child has more than its parent, and among equals the nodes that are there already win.
        worst_kept = self.worst_kept(limits.budget)
        return [node for node in nodes if self.scores[node] > worst_kept and self.depths[node] < limits.depth]

    def best_path(self) -> list[int]:
        """The ids, root first, of the path with the largest sum of chances: what one leaf path can bring at most."""
        ways, _ = best_ways(self.parents, np.array(self.scores))
        path = [ROOT]
        while ways[path[-1]] != NO_PARENT:
            path.append(ways[path[-1]])
        return path

    def chances(self, leaves: int) -> NDArray[np.float64]:
        """float64[n]: the chances of the nodes that a tree of at most `leaves` leaf paths can have, in falling order.

        Of several leaf paths all nodes count, because few trees have more than they may.
        """
        scores = np.array(self.scores)
        return np.sort(np.exp(scores[self.best_path()] if leaves == 1 else scores))[::-1]

    def drafted(self, nodes: Sequence[int]) -> list[DraftNode]:
        """`nodes` as a draft model knows them."""
        return [DraftNode(node, self.parents[node], self.tokens[node]) for node in nodes]

    def path(self, node: int) -> list[int]:
        """The drafted tokens from the root, which is left out, down to `node`."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def guesses(self, sources: SourceSet, node: int) -> list[tuple[int, float]]:
        """What draft sources guess after `node`, each with its chance, best first. A node is asked for once."""
        if node not in self._guesses:
            self._guesses[node] = sources.children(self.path(node), GUESSES)
        return self._guesses[node]

    def tree(self, limits: DraftLimits) -> TokenTree:
        """The best nodes within `limits`."""
        whole = TokenTree.build(self.tokens, self.parents, self.scores, self.probabilities)
        return whole.limited(limits.budget, limits.leaves)


def expandable_of(growth: TreeGrowth, source: ModelCandidates, nodes: list[int], width: int) -> list[int]:
    """At most `width` of `nodes`, best first, that one draft pass can expand together. The root alone always can be.

    nodes: all that may still be expanded, best first; no other node will be expanded from now on.
    """
    if nodes == [ROOT]:
        return nodes
    left_out = set(nodes)
    chosen = []
    for place in source.model.expandable([growth.parents[node] for node in nodes], width):
        node = nodes[place]
        if growth.parents[node] not in left_out:  # else its parent, which would come first in this pass, stays behind
            left_out.remove(node)
            chosen.append(node)
    return chosen


@dataclass
class ModelCandidates:
    """A draft model's candidates, ranked by the target's own sampling rule and noise.

    ready: the logits of the nodes that will be asked for next, if a pass over several texts has them.
    """

    model: DraftModel
    sampler: Sampler
    ready: NDArray[np.float32] | None = None

    def rows(self, growth: TreeGrowth, nodes: Sequence[int]) -> NDArray[np.float32]:
        """float32[len(nodes), n_vocab]: the draft's logits after each of `nodes`, from one pass."""
        if self.ready is not None:
            rows, self.ready = self.ready, None
            return rows
        if list(nodes) == [ROOT]:
            return self.model.start(growth.committed)[None]
        return self.model.expand(growth.drafted(nodes))

    def children(self, growth: TreeGrowth, nodes: Sequence[int]) -> CandidateRows:
        """The candidates below each of `nodes`, from one draft pass. The first call for a tree is for [ROOT]."""
        return self.candidates(growth, nodes, self.rows(growth, nodes))

    def candidates(self, growth: TreeGrowth, nodes: Sequence[int], rows: NDArray[np.float32]) -> CandidateRows:
        """The candidates below each of `nodes`, whose logits are `rows`: as many as acceptance is counted for."""
        sampler, n = self.sampler, len(growth.committed)
        recent = sampler.recent(growth.committed)
        before = [recent + growth.path(node) if sampler.reads_text else recent for node in nodes]
        return sampler.candidates(rows, [n + growth.depths[node] for node in nodes], before, MAX_RANK)

    def favourite(self, growth: TreeGrowth, node: int) -> int:
        """The token that the sampler would choose below `node`, from one draft pass; NO_TOKEN for none."""
        row, recent = self.rows(growth, [node])[0], self.sampler.recent(growth.committed) + growth.path(node)
        return self.sampler.sample(row, len(growth.committed) + growth.depths[node], recent)

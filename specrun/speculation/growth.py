"""What best-first growth has in common: the nodes offered so far, and where the children of a node come from."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Candidates, Sampler
from specrun.speculation.drafter import DraftLimits, DraftModel, DraftNode
from specrun.speculation.tree import NO_PARENT, ROOT, TokenTree

MAX_CHILDREN = 16


class TreeGrowth:
    """All nodes offered so far, by id; node 0 is the root.

    committed: the text up to and with the root. scores: cumulative log probability of acceptance. probabilities: the
    draft's own, among siblings. children: of every node, in the order offered.
    """

    def __init__(self, committed: Sequence[int]) -> None:
        self.committed = committed
        self.tokens = [committed[-1]]
        self.parents = [NO_PARENT]
        self.scores = [0.0]
        self.depths = [0]
        self.probabilities = [1.0]
        self.children: list[list[int]] = [[]]
        self._ids: dict[tuple[int, int], int] = {}

    def add(self, token: int, parent: int, score: float, probability: float) -> int:
        """Offer a child of `parent`; returns its id. probability: nan if the draft model has not been asked."""
        self._ids[parent, token] = len(self.tokens)
        self.children[parent].append(len(self.tokens))
        self.children.append([])
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        self.depths.append(self.depths[parent] + 1)
        self.probabilities.append(probability)
        return len(self.tokens) - 1

    def child(self, parent: int, token: int) -> int | None:
        """The child of `parent` that holds `token`, if it was offered."""
        return self._ids.get((parent, token))

    def rescore(self, node: int, score: float) -> None:
        """More is known of `node`: its score is `score` now, and what is below it gains or loses as much."""
        change = score - self.scores[node]
        below = [node]
        while below:
            found = below.pop()
            self.scores[found] += change
            below += self.children[found]

    def best(self, nodes: Iterable[int], count: int) -> list[int]:
        """The `count` best of `nodes`, best first; of equal ones the first that was offered."""
        return heapq.nsmallest(count, nodes, key=lambda node: (-self.scores[node], node))

    def worst_kept(self, budget: int) -> float:
        """Score of the budget-th best node; below it nothing stays in the tree."""
        return heapq.nlargest(budget, self.scores)[-1] if len(self.scores) >= budget else -math.inf

    def path(self, node: int) -> list[int]:
        """Drafted tokens down to `node`, the root left out."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def tree(self, limits: DraftLimits) -> TokenTree:
        """The best nodes within `limits`."""
        whole = TokenTree.build(self.tokens, self.parents, self.scores, self.probabilities)
        return whole.limited(limits.budget, limits.leaves)


class CandidateSource(Protocol):
    """Where growth gets the children of nodes from."""

    def children(self, growth: TreeGrowth, nodes: Sequence[int]) -> list[Candidates]:
        """Candidates below each of `nodes`, in one draft pass. The first call of a growth is for [ROOT] alone."""
        ...

    def expandable(self, parents: Sequence[int]) -> int:
        """How many children of these parents, in order, one pass can expand."""
        ...


class ChainSource(CandidateSource, Protocol):
    """Candidates for trees, and the one token that a chain follows."""

    def favourite(self, growth: TreeGrowth, node: int) -> int:
        """The token that the sampler would take below `node`, in one draft pass; NO_TOKEN if a constraint allows none.
        The first call of a growth is for ROOT.
        """
        ...


class ModelCandidates:
    """A draft model's candidates, ranked by the target's own sampling rule and noise."""

    def __init__(self, model: DraftModel, sampler: Sampler, max_children: int = MAX_CHILDREN) -> None:
        self.model = model
        self.sampler = sampler
        self._max_children = max_children

    def rows(self, growth: TreeGrowth, nodes: Sequence[int]) -> NDArray[np.float32]:
        """float32[len(nodes), n_vocab]: the draft's logits after each of `nodes`, in one pass."""
        if len(nodes) == 1 and nodes[0] == ROOT:
            return self.model.start(growth.committed)[None]
        return self.model.expand([DraftNode(n, growth.parents[n], growth.tokens[n]) for n in nodes])

    def children(self, growth: TreeGrowth, nodes: Sequence[int]) -> list[Candidates]:
        rows = self.rows(growth, nodes)
        recent = self.sampler.recent(growth.committed)
        return [
            self.sampler.candidates(
                row, len(growth.committed) + growth.depths[node], recent + growth.path(node), self._max_children
            )
            for node, row in zip(nodes, rows, strict=True)
        ]

    def favourite(self, growth: TreeGrowth, node: int) -> int:
        row = self.rows(growth, [node])[0]
        recent = self.sampler.recent(growth.committed) + growth.path(node)
        return self.sampler.sample(row, len(growth.committed) + growth.depths[node], recent)

    def expandable(self, parents: Sequence[int]) -> int:
        return self.model.expandable(parents)


def offer_children(
    growth: TreeGrowth,
    source: CandidateSource,
    nodes: Sequence[int],
    count: Callable[[NDArray[np.float64]], int] | None = None,
) -> list[int]:
    """Offer the candidates below each of `nodes`, in one draft pass, scored by the draft's own log probability; returns
    their ids. count: how many of them, given their probabilities (best first); all by default.
    """
    offered = []
    for node, candidates in zip(nodes, source.children(growth, nodes), strict=True):
        shares = candidates.shares
        if len(shares) == 0:
            continue
        for token, share in list(zip(candidates.tokens.tolist(), shares.tolist(), strict=True))[
            : count(shares) if count else None
        ]:
            offered.append(growth.add(token, node, growth.scores[node] + math.log(max(share, 1e-300)), share))
    return offered

"""Best-first tree growth: SpecExec (Svirschevski et al., arXiv 2406.02532), its Algorithm 1.

Each level runs the draft once, over the best nodes not expanded yet, and offers their likeliest children to the tree.
A child's score is its parent's plus its own log probability. Only nodes among the best `budget` of all seen so far
stay, so growth ends by itself when no unexpanded node is good enough, or at the depth limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Candidates, Sampler
from specrun.speculation.drafters.base import DraftLimits, DraftModel, DraftNode
from specrun.speculation.tree import NO_PARENT, ROOT, TokenTree

_MAX_CHILDREN = 16


@dataclass
class _Growth:
    """All nodes offered so far, by id; node 0 is the root."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [NO_PARENT])
    scores: list[float] = field(default_factory=lambda: [0.0])
    depths: list[int] = field(default_factory=lambda: [0])

    def add(self, token: int, parent: int, score: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        self.depths.append(self.depths[parent] + 1)
        return len(self.tokens) - 1

    def path(self, node: int) -> list[int]:
        """Drafted tokens down to `node`, the root left out."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]


class SpecExecDrafter:
    """Grows the tree whose nodes the draft believes likeliest.

    sharpness: log probabilities are those of softmax(sharpness * score), where the score is the one whose argmax the
    sampler would take (logits when greedy; logits / T + shared noise otherwise). 1 is the paper's rule. What counts is
    the chance that a child is the target's own choice, which for the best child is higher than its probability.
    max_children: most children of one node.
    """

    def __init__(
        self, model: DraftModel, sampler: Sampler, sharpness: float = 1.0, max_children: int = _MAX_CHILDREN
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._sharpness = sharpness
        self._max_children = max_children

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A tree within `limits`, of the best nodes seen."""
        growth = _Growth([tokens[-1]])
        recent = self._sampler.recent(tokens)
        if limits.budget > 1 and limits.depth > 0:
            rows = self._model.start(tokens)[None]
            level, unexpanded = [ROOT], set[int]()
            # As many passes as levels: a node skipped at its own level may take its turn at a later one.
            for n_passes in range(1, limits.depth + 1):
                worst_kept = _worst_kept(growth.scores, limits.budget)
                for node, row in zip(level, rows, strict=True):
                    unexpanded.update(self._add_children(growth, node, row, len(tokens), recent, worst_kept))
                level = self._next_level(growth, unexpanded, limits)
                if not level or n_passes == limits.depth:
                    break
                unexpanded.difference_update(level)
                rows = self._model.expand([DraftNode(n, growth.parents[n], growth.tokens[n]) for n in level])
        return TokenTree.build(growth.tokens, growth.parents, growth.scores).limited(limits.budget, limits.leaves)

    def _add_children(
        self,
        growth: _Growth,
        node: int,
        row: NDArray[np.float32],
        n_committed: int,
        recent: list[int],
        worst_kept: float,
    ) -> list[int]:
        """Offer the children of `node` that could still be among the best; returns their ids."""
        position = n_committed + growth.depths[node]
        seen = recent + growth.path(node)
        candidates = self._sampler.candidates(row, position, seen, self._max_children)
        scores = growth.scores[node] + self._log_probabilities(candidates)
        return [
            growth.add(token, node, score)
            for token, score in zip(candidates.tokens.tolist(), scores.tolist(), strict=True)
            if score > worst_kept
        ]

    def _log_probabilities(self, candidates: Candidates) -> NDArray[np.float64]:
        scores = self._sharpness * (candidates.scores - candidates.scores[0])
        return scores - np.log(np.exp(scores).sum())

    def _next_level(self, growth: _Growth, unexpanded: set[int], limits: DraftLimits) -> list[int]:
        """The nodes worth expanding now, best first; empty when growth is over."""
        worst_kept = _worst_kept(growth.scores, limits.budget)
        worth = [n for n in unexpanded if growth.scores[n] >= worst_kept and growth.depths[n] < limits.depth]
        worth = heapq.nsmallest(limits.width, worth, key=lambda n: (-growth.scores[n], n))
        return worth[: self._model.expandable([growth.parents[n] for n in worth])]


def _worst_kept(scores: list[float], budget: int) -> float:
    """Score of the budget-th best node; below it nothing stays in the tree."""
    return heapq.nlargest(budget, scores)[-1] if len(scores) >= budget else -np.inf

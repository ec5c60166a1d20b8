"""Trees whose children are drawn at random from the draft, for acceptance rules that compare two distributions.

What such a rule keeps is the target's distribution, so the draws must be just what the rule takes them for: from the
draft's distribution behind the very filters that it is shown, with fresh randomness at every step, and so many of them
as was decided before looking at any. The shape of a tree is therefore fixed, and only its tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from specrun.sampling import Distribution
from specrun.sampling.randomness import fresh
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.growth import ModelCandidates, TreeGrowth
from specrun.speculation.proposal import Proposal
from specrun.speculation.shape import TreeShape
from specrun.speculation.tree import ROOT, TokenTree

Draw = Literal["independent", "without replacement", "without replacement, then uniform"]


class SampledDrafter:
    """Fills a shape with draws.

    draw: `independent` draws may repeat a token, whose child then stands for all of them. `without replacement` gives
    fewer children where the draft's distribution has fewer tokens; `..., then uniform` goes on with tokens that it
    would never have drawn.
    """

    def __init__(self, source: ModelCandidates, shape: TreeShape, draw: Draw) -> None:
        self._source = source
        self._shape = shape
        self._draw = draw

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """The shape, cut to `limits`, with the proposals that an acceptance rule needs."""
        shape = self._shape.cut(limits.budget, limits.depth)
        growth = _Growth(tokens, self._source)
        places = {ROOT: ROOT}  # node of the growth -> node of the shape
        level = [ROOT] if shape.n_nodes > 1 else []
        while level:
            below: list[int] = []
            for node, found in zip(level, growth.distributions(level), strict=True):
                wanted = shape.children[places[node]]
                for child, place in zip(growth.add_draws(node, found, len(wanted), self._draw), wanted, strict=False):
                    if child not in places:
                        places[child] = place
                        below.append(child)
            level = growth.expandable([node for node in below if shape.children[places[node]]])
        return growth.tree_of_draws()


class SampledPathsDrafter:
    """Independent paths of equal length from the root, as SpecTr (arXiv 2310.15141) draws them; equal beginnings become
    one node, below which there are then as many draws as paths.
    """

    def __init__(self, source: ModelCandidates, n_paths: int) -> None:
        self._source = source
        self._n_paths = n_paths

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """At most so many paths as fit `limits`, as deep as they allow."""
        growth = _Growth(tokens, self._source)
        n_paths = min(self._n_paths, limits.leaves, (limits.budget - 1) // max(limits.depth, 1))
        paths = {ROOT: n_paths}  # node -> paths through it
        level = [ROOT] if n_paths and limits.depth else []
        for _ in range(limits.depth):
            if not level:
                break
            below: list[int] = []
            for node, found in zip(level, growth.distributions(level), strict=True):
                for child in growth.add_draws(node, found, paths[node], "independent"):
                    if child not in paths:
                        below.append(child)
                    paths[child] = paths.get(child, 0) + 1
            level = growth.expandable(below)
        return growth.tree_of_draws()


class _Growth(TreeGrowth):
    """A tree in growth, and the proposal below each expanded node."""

    def __init__(self, committed: Sequence[int], source: ModelCandidates) -> None:
        super().__init__(committed)
        self._source = source
        self._sampler = source.sampler
        self._recent = source.sampler.recent(committed)
        self._rng = fresh(source.sampler.parameters.seed, len(committed), "draw")
        self._proposals: dict[int, Proposal] = {}

    def distributions(self, nodes: Sequence[int]) -> list[Distribution]:
        """The draft's distribution after each of `nodes`, in one pass. The first call is for the root alone."""
        rows = self._source.rows(self, nodes)
        return [
            self._sampler.distribution(row, self._recent + self.path(node))
            for node, row in zip(nodes, rows, strict=True)
        ]

    def add_draws(self, node: int, found: Distribution, count: int, draw: Draw) -> list[int]:
        """Draw `count` children of `node`; returns their ids in the order drawn, the same id for the same token."""
        draws = _drawn(found, count, draw, self._sampler.n_vocab, self._rng)
        self._proposals[node] = Proposal(found.tokens, found.probabilities, tuple(draws))
        ids: dict[int, int] = {}
        for token in draws:
            if token not in ids:
                # Scores say the order only: the first drawn first, and never rising along a path.
                score = self.scores[node] - float(np.log(len(ids) + 2))
                share = float(found.probabilities[found.tokens == token].sum())
                ids[token] = self.add(token, node, score, share)
        return [ids[token] for token in draws]

    def expandable(self, nodes: Sequence[int]) -> list[int]:
        """Those of `nodes` that the draft can take in a pass; not the tokens that only the target knows."""
        known = [node for node in nodes if self.tokens[node] < self._source.model.n_vocab]
        return known[: self._source.expandable([self.parents[node] for node in known])]

    def tree_of_draws(self) -> TokenTree:
        """All nodes, with their proposals."""
        proposals = [self._proposals.get(node) for node in range(len(self.tokens))]
        return TokenTree.build(self.tokens, self.parents, self.scores, self.probabilities, proposals)


def _drawn(found: Distribution, count: int, draw: Draw, n_vocab: int, rng: np.random.Generator) -> list[int]:
    if draw == "independent":
        return [int(token) for token in rng.choice(found.tokens, count, p=found.probabilities)]
    # The order of log q + Gumbel noise is that of draws without replacement (Gumbel top-k, arXiv 1903.06059).
    keys = np.log(found.probabilities) + rng.gumbel(size=len(found.tokens))
    draws = found.tokens[np.argsort(-keys)[:count]].tolist()
    if draw == "without replacement, then uniform" and len(draws) < count:
        others = np.setdiff1d(np.arange(n_vocab), found.tokens)
        draws += rng.choice(others, min(count - len(draws), len(others)), replace=False).tolist()
    return [int(token) for token in draws]

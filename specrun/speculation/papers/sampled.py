"""Trees whose children are drawn at random from the draft, for acceptance rules that compare two distributions.

Such a rule keeps the target's distribution only if the draws are what it assumes: draws from the filtered draft
distribution that it is given, with fresh randomness in every pass, and as many as were decided on before any was made.
So the shape of a tree is fixed and only its tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specrun.sampling import Distribution
from specrun.speculation.drafter import Draft, Drafter, DraftLimits, Growing, Logits
from specrun.speculation.drafters.static import fill_shape
from specrun.speculation.growth import ModelCandidates, TreeGrowth, expandable_of
from specrun.speculation.shape import TreeShape
from specrun.speculation.tree import TokenTree, depth_first

Draw = Literal["independent", "without replacement", "without replacement, then uniform"]
_STREAMS = {"draw": 1, "accept": 2}


@dataclass(frozen=True)
class Proposal(Distribution):
    """The draft's distribution after a node, with filters applied, and the candidates drawn from it."""

    draws: tuple[int, ...]  # in the order drawn; independent draws may repeat a token


@dataclass(frozen=True)
class DrawnDraft(Draft):
    """A draft whose tree was drawn at random."""

    proposals: tuple[Proposal | None, ...] = ()  # how the children of each node were drawn; None for no draws

    def limited(self, max_nodes: int, max_leaves: int) -> Draft:  # noqa: ARG002
        """Raises ValueError: the acceptance rule needs every draw."""
        raise ValueError("a tree that was drawn at random cannot lose nodes")


def generator(seed: int, position: int, stream: Literal["draw", "accept"]) -> np.random.Generator:
    """The generator for drawing the tree whose root is at `position`, or for accepting it.

    It depends on the arguments only. Other positions, and the noise that target and draft share, are independent of it.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, position, _STREAMS[stream]])))


@dataclass(frozen=True)
class SampledDrafter(Drafter):
    """Fills a shape with draws.

    Independent draws may repeat a token; one child stands for all of them, with the draws after each of them. Draws
    without replacement give fewer children where the draft's distribution has fewer tokens, unless further ones are
    drawn uniformly from the others.
    """

    source: ModelCandidates
    shape: TreeShape
    draws: Draw

    def grow(self, tokens: Sequence[int], limits: DraftLimits) -> Growing:
        growth, source, sampler = TreeGrowth(tokens), self.source, self.source.sampler
        recent, rng = sampler.recent(tokens), generator(sampler.parameters.seed, len(tokens), "draw")
        proposals: dict[int, Proposal] = {}

        def add_draws(node: int, row: Logits, count: int) -> list[int]:
            q = sampler.distribution(row, recent + growth.path(node))
            draws = _drawn(q, count, self.draws, sampler.n_vocab, rng)
            proposals[node] = Proposal(q.tokens, q.probabilities, tuple(draws))
            ids: dict[int, int] = {}
            for token in dict.fromkeys(draws):
                # Scores only fix the order of the nodes: the first drawn first, and never rising along a path.
                score = growth.scores[node] - float(np.log(len(ids) + 2))
                ids[token] = growth.add(token, node, score, float(q.probabilities[q.tokens == token].sum()))
            return [ids[token] for token in draws]

        def add_children(level: list[int], counts: list[int]) -> list[list[int]]:
            return [add_draws(*each) for each in zip(level, source.rows(growth, level), counts, strict=True)]

        def expandable(nodes: list[int]) -> list[int]:  # the draft has no token beyond its own vocabulary
            possible = [node for node in nodes if growth.tokens[node] < source.model.n_vocab]
            return expandable_of(growth, source, possible, len(possible))

        yield from fill_shape(growth, self.shape.cut(limits.budget, limits.depth), add_children, expandable)
        tree = TokenTree.build(growth.tokens, growth.parents, growth.scores, growth.probabilities)
        order = depth_first(growth.parents, growth.scores)
        return DrawnDraft(tree, proposals=tuple(proposals.get(node) for node in order))


def _drawn(q: Distribution, count: int, draw: Draw, n_vocab: int, rng: np.random.Generator) -> list[int]:
    """The tokens of `count` draws from q, in the order drawn."""
    if draw == "independent":
        return [int(token) for token in rng.choice(q.tokens, count, p=q.probabilities)]
    # Sorting by log q + Gumbel noise draws without replacement (Gumbel top-k, arXiv 1903.06059).
    keys = np.log(q.probabilities) + rng.gumbel(size=len(q.tokens))
    draws = q.tokens[np.argsort(-keys)[:count]].tolist()
    if draw == "without replacement, then uniform" and len(draws) < count:
        others = np.setdiff1d(np.arange(n_vocab), q.tokens)
        draws += rng.choice(others, min(count - len(draws), len(others)), replace=False).tolist()
    return [int(token) for token in draws]

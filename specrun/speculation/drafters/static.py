"""Trees of a fixed shape (Sequoia, arXiv 2402.12374), where a node's i-th child is the draft's i-th candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specrun.speculation.drafter import Draft, Drafter, DraftLimits, DraftNode, Growing
from specrun.speculation.growth import CandidateSource, TreeGrowth, expandable_of
from specrun.speculation.method import ACCEPTANCE, DRAFT, Method
from specrun.speculation.shape import TreeShape
from specrun.speculation.tree import ROOT

MAX_DEPTH = 24  # levels of the trees that are considered; chosen by hand


AddChildren = Callable[[list[int], list[int]], list[list[int]]]
"""(nodes of a level, how many children each should have) -> the ids of each node's, in the order of the shape.

There may be fewer, and a child that occurs twice has the children of both places."""


def fill_shape(
    growth: TreeGrowth, shape: TreeShape, add_children: AddChildren, expandable: Callable[[list[int]], list[int]]
) -> Iterator[Sequence[DraftNode]]:
    """Grow a tree of the given shape level by level. Yields the nodes of each draft pass, before children are added.

    expandable: gives the nodes among its arguments that one draft pass can expand.
    """
    places = {ROOT: [ROOT]}  # node of the tree -> nodes of the shape that it stands for
    level = [ROOT] if shape.n_nodes > 1 else []
    while level:
        yield growth.drafted(level)
        wanted = [[child for place in places[node] for child in shape.children[place]] for node in level]
        below: list[int] = []
        for children, free in zip(add_children(level, [len(w) for w in wanted]), wanted, strict=True):
            for child, place in zip(children, free, strict=False):
                if child not in places:
                    places[child] = []
                    below.append(child)
                places[child].append(place)
        level = expandable([node for node in below if any(shape.children[place] for place in places[node])])


@dataclass(frozen=True)
class StaticDrafter(Drafter):
    """Fills a shape with the draft's candidates, best first, regardless of their probabilities.

    A node with too few candidates has fewer children than in the shape.
    """

    source: CandidateSource
    shape: TreeShape

    def grow(self, tokens: Sequence[int], limits: DraftLimits) -> Growing:
        growth = TreeGrowth(tokens)

        def add_children(level: list[int], counts: list[int]) -> list[list[int]]:
            added: list[list[int]] = []
            for node, candidates, count in zip(level, self.source.children(growth, level), counts, strict=True):
                added.append([])
                best = zip(candidates.tokens[:count].tolist(), candidates.shares[:count].tolist(), strict=True)
                for rank, (token, share) in enumerate(best):
                    # Scores only fix the order of the nodes: siblings by rank, and never rising along a path.
                    added[-1].append(growth.add(token, node, growth.scores[node] - float(np.log(rank + 2)), share))
            return added

        def expandable(nodes: list[int]) -> list[int]:
            return expandable_of(growth, self.source, nodes, len(nodes))

        yield from fill_shape(growth, self.shape.cut(limits.budget, limits.depth), add_children, expandable)
        return Draft(growth.tree(limits))


SEQUOIA_MATCH = Method(
    name="sequoia-match",
    kind="tree",
    paper="Sequoia's trees, arXiv 2402.12374; shared noise, 2408.07978",
    pays="where specexec does, if growing a tree node by node takes too long",
    drafter=lambda drafting: StaticDrafter(drafting.need_source(), drafting.need_shape()),
    needs=(DRAFT, ACCEPTANCE),
    options=lambda _: "--method sequoia-match (its tree follows from the profile)",
)

"""Trees of a fixed shape (Sequoia, arXiv 2402.12374), where a node's i-th child is the draft's i-th candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specrun.speculation.drafter import Draft, Drafter, DraftLimits, DraftNode, Growing
from specrun.speculation.growth import ModelCandidates, TreeGrowth, expandable_of
from specrun.speculation.method import ACCEPTANCE, DRAFT, Method
from specrun.speculation.shape import TreeShape
from specrun.speculation.tree import ROOT

MAX_DEPTH = 24  # levels of the trees that are considered; chosen by hand


@dataclass
class StaticDrafter(Drafter):
    """Fills a shape with the draft's candidates, best first, regardless of their probabilities.

    A node with too few candidates has fewer children than in the shape.
    """

    source: ModelCandidates
    shape: TreeShape

    def grow(self, tokens: Sequence[int], limits: DraftLimits) -> Growing:
        growth = TreeGrowth(tokens)
        yield from self.fill(growth, limits)
        return Draft(growth.tree(limits))

    def fill(self, growth: TreeGrowth, limits: DraftLimits) -> Iterator[Sequence[DraftNode]]:
        """Grow the shape level by level. Yields the nodes of each draft pass, before their children are added."""
        shape = self.shape.cut(limits.budget, limits.depth)
        places = {ROOT: [ROOT]}  # node of the tree -> nodes of the shape that it stands for
        level = [ROOT] if shape.n_nodes > 1 else []
        while level:
            yield growth.drafted(level)
            wanted = [[child for place in places[node] for child in shape.children[place]] for node in level]
            below: list[int] = []
            for children, free in zip(self.add_children(growth, level, list(map(len, wanted))), wanted, strict=True):
                for child, place in zip(children, free, strict=False):
                    if child not in places:
                        places[child] = []
                        below.append(child)
                    places[child].append(place)
            # The draft has no token beyond its own vocabulary.
            n_vocab = self.source.model.n_vocab
            inner = [node for node in below if any(shape.children[place] for place in places[node])]
            inner = [node for node in inner if growth.tokens[node] < n_vocab]
            level = expandable_of(growth, self.source, inner, len(inner))

    def add_children(self, growth: TreeGrowth, level: list[int], counts: list[int]) -> list[list[int]]:
        """The new ids below each node of a level, in the order of the shape. There may be fewer than `counts`, and one
        that occurs twice has the children of both places.
        """
        added: list[list[int]] = []
        for node, candidates, count in zip(level, self.source.children(growth, level), counts, strict=True):
            best = zip(candidates.tokens[:count].tolist(), candidates.shares[:count].tolist(), strict=True)
            added.append([growth.add_ranked(token, node, rank, share) for rank, (token, share) in enumerate(best)])
        return added


SEQUOIA_MATCH = Method(
    name="sequoia-match",
    kind="tree",
    paper="Sequoia's trees, arXiv 2402.12374; shared noise, 2408.07978",
    pays="where specexec does, if growing a tree node by node takes too long",
    drafter=lambda drafting: StaticDrafter(drafting.need_source(), drafting.need_shape()),
    needs=(DRAFT, ACCEPTANCE),
    options=lambda _: "--method sequoia-match (its tree follows from the profile)",
)

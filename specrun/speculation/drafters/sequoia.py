"""Trees of a fixed shape: the shape with the most expected tokens a pass, and the drafter that fills it.

Sequoia (arXiv 2402.12374) assumes that p_k, the chance that a node's k-th candidate is accepted, is the same at every
node. A node is then accepted with the product of p along its path, and the expected tokens are the sum over all nodes.

This vector p, the positional acceptance of sample and match, follows from what a profile has counted; without one it is
the mean over the positions of a text of expected values over the noise there (docs/methods.md#sequoia).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Distribution
from specrun.speculation.drafter import Draft, Drafter, DraftLimits, DraftNode, Growing
from specrun.speculation.growth import ModelCandidates, TreeGrowth, expandable_of
from specrun.speculation.method import ACCEPTANCE, DRAFT, Method
from specrun.speculation.planning.calibration import MAX_RANK
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.tree import MAX_LEAVES, NO_PARENT, ROOT, TreeShape, depth_first

Chances = NDArray[np.float64]

# Levels of the trees that are considered: where a draft is right nine times in ten, a 25th is reached in 8 % of passes.
MAX_DEPTH = 24


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


def best_shape(acceptance: Sequence[float], n_nodes: int, depth: int, max_leaves: int = MAX_LEAVES) -> TreeShape:
    """The tree of at most `n_nodes` nodes (root included) and `depth` levels below the root with the most expected
    tokens a pass, without nodes of chance 0.

    The likeliest node that can be added is added next. As a node is never likelier than its parent and the sibling
    before it where the vector falls, this is the best tree of each size, which the paper finds by dynamic programming.
    With a bound on leaf paths it is within a thousandth of the best.
    """
    p = np.array(acceptance, np.float64)
    # Where the vector rises, a child is added for the sake of the sibling after it.
    ahead = np.maximum.accumulate(p[::-1])[::-1].tolist()
    parents, chances, levels = [NO_PARENT], [1.0], [0]
    waiting: list[tuple[float, int, int]] = []  # a heap of (-chance, parent, rank)

    def offer(parent: int, rank: int) -> None:
        if levels[parent] < depth and rank < len(ahead) and (chance := chances[parent] * ahead[rank]) > 0:
            heapq.heappush(waiting, (-chance, parent, rank))

    offer(ROOT, 0)
    n_leaves = 1
    while waiting and len(parents) < n_nodes:
        _, parent, rank = heapq.heappop(waiting)
        if rank and n_leaves == max_leaves:
            continue
        n_leaves += rank > 0
        parents.append(parent)
        chances.append(chances[parent] * float(p[rank]))
        levels.append(levels[parent] + 1)
        offer(len(parents) - 1, 0)
        offer(parent, rank + 1)
    return TreeShape.of_nodes(parents, depth_first(parents, range(0, -len(parents), -1)))


def pass_ms(shape: TreeShape, costs: CostModel, ctx: int) -> float:
    """Milliseconds of a target pass over `shape` after `ctx` tokens, with its draft passes."""
    drafting = sum(costs.draft.ms(width, ctx) for width in shape.expanded_widths) if costs.draft else 0.0
    return costs.target.ms(shape.n_nodes, ctx) + drafting


def choose(
    acceptance: Sequence[float], costs: CostModel, ctx: int, largest: int, max_depth: int, max_leaves: int = MAX_LEAVES
) -> TreeShape:
    """The fastest of the best trees of each measured size and depth after `ctx` tokens, or the root if none pays."""
    best, best_rate = TreeShape.chain(0), 1e3 / costs.target.ms(1, ctx)
    for n_nodes in (n for n in costs.target.sizes if 1 < n <= largest):
        for depth in range(1, max_depth + 1):
            shape = best_shape(acceptance, n_nodes, depth, max_leaves)
            if shape.depth < depth:
                break  # more levels make no other tree
            rate = 1e3 * shape.expected(acceptance) / pass_ms(shape, costs, ctx)
            if rate > best_rate:
                best, best_rate = shape, rate
    return best


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

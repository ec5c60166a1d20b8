"""Drafters of papers: they end trees by the draft's own probabilities, or draw them at random for a rule to accept.

What is ours in them is in docs/methods.md. A rule (`rules`) keeps the target's distribution only if the draws are what
it assumes: from the filtered draft distribution that it is given, with fresh randomness in every pass, and as many as
were decided on before any was made. So the shape of a drawn tree is fixed and only its tokens are drawn.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from specrun.sampling import Distribution
from specrun.speculation.drafter import Draft, Drafter, DraftLimits, Growing
from specrun.speculation.drafters.sequoia import StaticDrafter
from specrun.speculation.growth import ModelCandidates, TreeGrowth, expandable_of
from specrun.speculation.method import Method
from specrun.speculation.planning.guide import Guide
from specrun.speculation.tree import MAX_LEAVES, ROOT, TokenTree, TreeShape, depth_first


class OwnGrowth(TreeGrowth):
    """A growing tree with the draft's own probabilities, which lack the noise of the scores that rank the nodes."""

    def __init__(self, committed: Sequence[int]) -> None:
        super().__init__(committed)
        self.own = [1.0]  # of each node after its parent
        self.own_paths = [1.0]  # of the path to each node: the product of the above
        self.distributions: dict[int, NDArray[np.float64]] = {}  # of the token after each expanded node


Select = Callable[[OwnGrowth, list[int], DraftLimits], list[int]]
"""(growth, nodes of the newest level, limits) -> the nodes to expand next, best first; none ends the tree."""


@dataclass(frozen=True)
class LevelDrafter(Drafter):
    """Grows a tree level by level. select: chooses the nodes that a level's draft pass expands. count: the number of
    candidates that are offered below a node, from the draft's own probability of the first; None offers all.
    """

    source: ModelCandidates
    select: Select
    count: Callable[[float], int] | None = None

    def grow(self, tokens: Sequence[int], limits: DraftLimits) -> Growing:
        growth = OwnGrowth(tokens)
        level = [ROOT]
        for _ in range(min(limits.depth, limits.budget - 1)):
            yield growth.drafted(level)
            below = self._offer(growth, level)
            chosen = self.select(growth, below, limits) if below else []
            level = expandable_of(growth, self.source, chosen, limits.width) if chosen else []
            if not level:
                break
        return Draft(growth.tree(limits))

    def _offer(self, growth: OwnGrowth, nodes: Sequence[int]) -> list[int]:
        """Offer the candidates below each of `nodes`, from one draft pass. Returns the ids of the new nodes."""
        rows, first, sampler = self.source.rows(growth, nodes), len(growth.tokens), self.source.sampler
        for node, row, found in zip(nodes, rows, self.source.candidates(growth, nodes, rows), strict=True):
            if not len(found.tokens):
                continue
            # Greedily the draft samples, at temperature 1, from its candidates. A grammar does not change any of it.
            q = Distribution(found.tokens, found.shares)
            if sampler.noise is not None:
                q = sampler.distribution(row, sampler.recent(growth.committed) + growth.path(node))
            own = q.dense(len(row))[found.tokens]
            growth.distributions[node] = q.probabilities
            children = zip(found.tokens.tolist(), found.log_shares().tolist(), own.tolist(), strict=True)
            for token, log_share, p in islice(children, self.count(own[0]) if self.count else None):
                growth.add(token, node, growth.scores[node] + log_share, math.exp(log_share))
                growth.own.append(p)
                growth.own_paths.append(growth.own_paths[node] * p)
        return list(range(first, len(growth.tokens)))


_THRESHOLD = 0.2  # tokens; used without measured pass times


def opt_tree(guide: Guide | None = None) -> Select:
    """OPT-Tree (arXiv 2406.17276): expand the likeliest nodes until a level raised the expected accepted length by less
    than a threshold: a draft pass's time over a target pass's by the guide, else 0.2 tokens.
    """

    def select(growth: OwnGrowth, below: list[int], limits: DraftLimits) -> list[int]:
        threshold, ctx = _THRESHOLD, len(growth.committed)
        if guide:
            levels, width = guide.levels_row(ctx), len({growth.parents[node] for node in below})
            threshold = min(float(levels[min(width, len(levels) - 1)]) / guide.plain_ms(ctx), 1.0)
        # The chances of the best nodes add up to the expected length.
        before, expected = (
            sum(heapq.nlargest(limits.budget, paths)) for paths in (growth.own_paths[: below[0]], growth.own_paths)
        )
        if expected - before < threshold:
            return []
        # Only nodes among the best can have descendants among them.
        kept = set(growth.best(range(len(growth.scores)), limits.budget))
        return growth.best(kept & set(below), limits.width)

    return select


BEAM = 10  # nodes, as in EAGLE-2 (arXiv 2406.16858)
_LEAST_SHARE = 0.3  # below this sum of probabilities the target's token is probably outside the beam


def dynamic_depth(growth: OwnGrowth, below: list[int], limits: DraftLimits) -> list[int]:
    """DDD (arXiv 2409.00142): a beam of the likeliest paths, until their probabilities have a small sum."""
    beam = growth.best(below, limits.width)
    return beam if sum(growth.own_paths[node] for node in beam) >= _LEAST_SHARE else []


def cape_count(probability: float) -> int:
    """CaPE (arXiv 2402.02082): the drafted token and its siblings, more of them the less likely it is."""
    return next((count for bound, count in ((0.3, 7), (0.6, 5), (0.8, 3)) if probability <= bound + 1e-9), 1)


def _entropy_bound(distribution: NDArray[np.float64]) -> float:
    """AdaEDL's lower bound on the chance of acceptance, which falls with the entropy in nats."""
    positive = distribution[distribution > 0]
    return 1 - math.sqrt(-0.2 * float((positive * np.log(positive)).sum()))


Stop = Callable[[NDArray[np.float64], float, float], bool]
"""(float64[k], the draft's own distribution; its probability of a drafted token; the product of these so far) ->
whether a chain ends with this token, which is not its first."""
STOPS: dict[str, Stop] = {
    "specdec++": lambda _distribution, _probability, path: 1 - path > 0.7,  # the chance that any token is rejected
    "disco": lambda _distribution, probability, _path: probability < 0.4,
    "adaedl": lambda distribution, _probability, _path: _entropy_bound(distribution) < 0.3,
}


def chain(
    source: ModelCandidates, stop: Stop | None = None, count: Callable[[float], int] = lambda _: 1
) -> LevelDrafter:
    """A chain of the best candidates until `stop` says so. Further ones, by `count`, have no children."""

    def select(growth: OwnGrowth, below: list[int], _limits: DraftLimits) -> list[int]:
        node, parent = below[0], growth.parents[below[0]]
        # The token at which the chain stops costs no further draft pass, so it is kept.
        ends = stop and parent != ROOT and stop(growth.distributions[parent], growth.own[node], growth.own_paths[node])
        return [] if ends else [node]

    return LevelDrafter(source, select, count)


def _stopping(name: str, paper: str) -> Method:
    pays = "where chain does, if the draft's confidence varies much"
    return Method(name, "chain", paper, pays, lambda d: chain(d.need_source(), STOPS[name]), stops=True)


GROWERS = (
    _stopping("specdec++", "SpecDec++, arXiv 2405.19715"),
    _stopping("disco", "DISCO, arXiv 2405.04304"),
    _stopping("adaedl", "AdaEDL, arXiv 2410.18351"),
    Method(
        "cape", "tree", "GliDe with a CaPE, arXiv 2402.02082", "where 20 more tokens in a pass cost little",
        lambda d: chain(d.need_source(), count=cape_count),
    ),
    Method(
        "opt-tree", "tree", "OPT-Tree, arXiv 2406.17276",
        "where specexec does; it makes fewer draft passes where further ones gain little",
        lambda d: LevelDrafter(d.need_source(), opt_tree(d.guide)), stops=True,
    ),
    Method(
        "ddd", "tree", "Dynamic depth decoding, arXiv 2409.00142; EAGLE-2, 2406.16858",
        "where specexec does; it makes fewer draft passes where the draft's probabilities are low",
        lambda d: LevelDrafter(d.need_source(), dynamic_depth), stops=True, width=BEAM,
    ),
)  # fmt: skip


def forked(budget: int, depth: int, stem: int = 0) -> TreeShape:
    """As many paths as fit that have their first `stem` tokens in common, as deep as `depth` allows, but shorter where
    otherwise not even two would fit. SpecInfer (arXiv 2305.09781, section 6.1) has <1,1,3,1,1,1,1,1>, SpecTr (arXiv
    2310.15141) up to 8 paths of 8 tokens, which is a budget of 65. budget: at least 2.
    """
    stem = max(min(stem, depth - 1, budget - 3), 0)
    room = budget - 1 - stem
    length = min(depth - stem, max(room // 2, 1))
    return TreeShape.branching([*[1] * stem, min(room // length, MAX_LEAVES), *[1] * (length - 1)])


def doubling(budget: int, depth: int) -> TreeShape:
    """Two children for every node on as many levels as fit; what is left of the budget adds levels of one child each,
    and where it does not reach for one, or `depth` forbids it, more children, the first level first: the 2-2-2 of RSD-C
    (arXiv 2402.14160), and the 4-2-2 of multi-candidate sampling's code (arXiv 2401.06706), a budget of 29.
    """

    def fits(counts: Sequence[int]) -> bool:
        widths = [prod(counts[:level]) for level in range(len(counts) + 1)]
        return sum(widths) <= budget and widths[-1] <= MAX_LEAVES

    counts: list[int] = []
    for n in (2, 1):
        while len(counts) < depth and fits([*counts, n]):
            counts.append(n)
    for level in range(len(counts)):
        while fits(wider := [*counts[:level], counts[level] + 1, *counts[level + 1 :]]):
            counts = wider
    return TreeShape.branching(counts)


Draw = Literal["independent", "without replacement", "without replacement, then uniform"]


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


def generator(seed: int, position: int, stream: int) -> Generator:
    """The generator for drawing the tree whose root is at `position` (stream 1), or for accepting it (2). Those of
    other positions, and the noise that target and draft share, are independent of it.
    """
    return Generator(np.random.Philox(np.random.SeedSequence([seed, position, stream])))


@dataclass
class SampledDrafter(StaticDrafter):
    """Fills a shape with draws. Independent ones may repeat a token; one child stands for all of them, with the draws
    after each. Those without replacement are fewer where q has fewer tokens, unless others follow uniformly.
    """

    draws: Draw

    def grow(self, tokens: Sequence[int], limits: DraftLimits) -> Growing:
        growth = TreeGrowth(tokens)
        self._proposals: dict[int, Proposal] = {}  # by node
        self._rng = generator(self.source.sampler.parameters.seed, len(tokens), 1)
        yield from self.fill(growth, limits)
        tree = TokenTree.build(growth.tokens, growth.parents, growth.scores, growth.probabilities)
        order = depth_first(growth.parents, growth.scores)
        return DrawnDraft(tree, proposals=tuple(self._proposals.get(node) for node in order))

    def add_children(self, growth: TreeGrowth, level: list[int], counts: list[int]) -> list[list[int]]:
        sampler = self.source.sampler
        recent, added = sampler.recent(growth.committed), list[list[int]]()
        for node, row, count in zip(level, self.source.rows(growth, level), counts, strict=True):
            q = sampler.distribution(row, recent + growth.path(node))
            draws = self._drawn(q, count, sampler.n_vocab)
            self._proposals[node] = Proposal(q.tokens, q.probabilities, tuple(draws))
            ids = {
                token: growth.add_ranked(token, node, rank, float(q.probabilities[q.tokens == token].sum()))
                for rank, token in enumerate(dict.fromkeys(draws))
            }
            added.append([ids[token] for token in draws])
        return added

    def _drawn(self, q: Distribution, count: int, n_vocab: int) -> list[int]:
        """The tokens of `count` draws from q, in the order drawn."""
        if self.draws == "independent":
            return [int(token) for token in self._rng.choice(q.tokens, count, p=q.probabilities)]
        # Sorting by log q + Gumbel noise draws without replacement (Gumbel top-k, arXiv 1903.06059).
        keys = np.log(q.probabilities) + self._rng.gumbel(size=len(q.tokens))
        draws = q.tokens[np.argsort(-keys)[:count]].tolist()
        if self.draws == "without replacement, then uniform" and len(draws) < count:
            others = np.setdiff1d(np.arange(n_vocab), q.tokens)
            draws += self._rng.choice(others, min(count - len(draws), len(others)), replace=False).tolist()
        return [int(token) for token in draws]

"""Best-first tree growth: SpecExec (Svirschevski et al., arXiv 2406.02532), its Algorithm 1.

Each level runs the draft once, over the best nodes not expanded yet, and offers their likeliest children to the tree.
A child's score is its parent's plus its own log probability. Only nodes among the best `budget` of all seen so far
stay, so growth ends by itself when no unexpanded node is good enough, or at the depth limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from specrun.sampling import Candidates
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.growth import CandidateSource, TreeGrowth
from specrun.speculation.method import Drafting, Method
from specrun.speculation.plan import Plan
from specrun.speculation.planning.plan_space import PlanSpace
from specrun.speculation.tree import ROOT, TokenTree

# Up to 128 nodes it commits 2 to 11 % more tokens a pass than the paper's 1.0 (scripts/bench_growth.py).
_GREEDY_SHARPNESS = 1.5
_DEPTHS = (2, 3, 4, 6, 8, 12, 16)  # that tune considers


def sharpness_at(temperature: float) -> float:
    """The sharpness of the scores that commits most."""
    return _GREEDY_SHARPNESS if temperature == 0 else 1.0


class SpecExecDrafter:
    """Grows the tree whose nodes the draft believes likeliest.

    sharpness: log probabilities are those of softmax(sharpness * score), where the score is the one whose argmax the
    sampler would take (logits when greedy; logits / T + shared noise otherwise). 1 is the paper's rule. What counts is
    the chance that a child is the target's own choice, which for the best child is higher than its probability.
    """

    def __init__(self, source: CandidateSource, sharpness: float = 1.0) -> None:
        self._source = source
        self._sharpness = sharpness

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A tree within `limits`, of the best nodes seen."""
        growth = TreeGrowth(tokens)
        if limits.budget > 1 and limits.depth > 0:
            level, unexpanded = [ROOT], set[int]()
            # As many passes as levels: a node skipped at its own level may take its turn at a later one.
            for n_passes in range(1, limits.depth + 1):
                worst_kept = growth.worst_kept(limits.budget)
                for node, candidates in zip(level, self._source.children(growth, level), strict=True):
                    unexpanded.update(self._add_children(growth, node, candidates, worst_kept))
                level = self._next_level(growth, unexpanded, limits)
                if not level or n_passes == limits.depth:
                    break
                unexpanded.difference_update(level)
        return growth.tree(limits)

    def _add_children(self, growth: TreeGrowth, node: int, candidates: Candidates, worst_kept: float) -> list[int]:
        """Offer the children of `node` that could still be among the best; returns their ids."""
        scores = growth.scores[node] + candidates.log_shares(self._sharpness)
        own = candidates.shares
        return [
            growth.add(token, node, score, probability)
            for token, score, probability in zip(candidates.tokens.tolist(), scores.tolist(), own.tolist(), strict=True)
            if score > worst_kept
        ]

    def _next_level(self, growth: TreeGrowth, unexpanded: set[int], limits: DraftLimits) -> list[int]:
        """The nodes worth expanding now, best first; empty when growth is over."""
        worst_kept = growth.worst_kept(limits.budget)
        worth = [n for n in unexpanded if growth.scores[n] >= worst_kept and growth.depths[n] < limits.depth]
        worth = growth.best(worth, limits.width)
        return worth[: self._source.expandable([growth.parents[n] for n in worth])]


def specexec(drafting: Drafting) -> SpecExecDrafter:
    """The drafter with the sharpness that suits the temperature."""
    return SpecExecDrafter(drafting.need_source(), sharpness_at(drafting.temperature))


def _candidates(space: PlanSpace) -> list[Plan]:
    return [
        SPECEXEC.plan(budget, depth)
        for budget in space.sizes
        for depth in _DEPTHS
        if 3 <= budget <= 16 * depth and depth < budget - 1 and space.may_pay(budget, depth)
    ]


SPECEXEC = Method(
    name="specexec",
    kind="tree",
    paper="SpecExec, arXiv 2406.02532",
    pays="where weights are offloaded, so that large passes are cheap",
    drafter=specexec,
    candidates=_candidates,
    label=lambda plan: f"tree of {plan.size}",
    options=lambda plan: f"--speculate tree --budget {plan.budget} --depth {plan.depth}",
)

"""Best-first tree growth: Algorithm 1 of SpecExec (Svirschevski et al., arXiv 2406.02532).

For each level, one draft pass runs over the best nodes that are not expanded yet, and their likeliest children are
offered to the tree. A child's score is its parent's plus its own log probability. Only the best `budget` nodes of all
that were offered stay, so growth ends when none of them is left to expand, or at the depth limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specrun.speculation.drafter import Draft, Drafter, DraftLimits, Growing
from specrun.speculation.growth import ModelCandidates, TreeGrowth, expandable_of
from specrun.speculation.method import HEADS, Drafting, HeadKind, Method
from specrun.speculation.tree import ROOT

# 1.5 commits 14 to 31 % more tokens a pass than the paper's 1.0 from 8 nodes on (docs/benchmarks/growth.md).
_GREEDY_SHARPNESS = 1.5


def sharpness_at(temperature: float) -> float:
    """The sharpness of the scores with which trees commit most tokens."""
    return _GREEDY_SHARPNESS if temperature == 0 else 1.0


@dataclass(frozen=True)
class SpecExecDrafter(Drafter):
    """Grows the tree of the nodes that are likeliest by the draft's probabilities.

    sharpness: log probabilities are those of softmax(sharpness * x), where x are the values whose argmax the sampler
        takes: logits when greedy, else logits / T + shared noise. 1 is the paper's rule. More than 1 can be better,
        because the target chooses the best child more often than the draft's probability says.
    """

    source: ModelCandidates
    sharpness: float = 1.0

    def grow(self, tokens: Sequence[int], limits: DraftLimits) -> Growing:
        growth = TreeGrowth(tokens)
        if limits.budget > 1 and limits.depth > 0:
            level, unexpanded = [ROOT], list[int]()
            # There are as many passes as levels; a node that was skipped at its own level may be expanded later.
            for n_passes in range(1, limits.depth + 1):
                yield growth.drafted(level)
                worst_kept = growth.worst_kept(limits.budget)
                rows = self.source.children(growth, level)
                unexpanded += growth.add_likely(level, rows, self.sharpness, worst_kept)
                if n_passes == limits.depth:
                    break
                unexpanded = growth.open(unexpanded, limits)
                unexpanded = growth.best(unexpanded, len(unexpanded))
                level = expandable_of(growth, self.source, unexpanded, limits.width)
                if not level:
                    break
                expanded = set(level)
                unexpanded = [node for node in unexpanded if node not in expanded]
        return Draft(growth.tree(limits))


def specexec(drafting: Drafting) -> SpecExecDrafter:
    """The drafter with the sharpness that suits the temperature."""
    return SpecExecDrafter(drafting.need_source(), sharpness_at(drafting.temperature))


SPECEXEC = Method(
    name="specexec",
    kind="tree",
    paper="SpecExec, arXiv 2406.02532",
    pays="where a pass over many tokens costs little more than one over a few, as with offloaded weights",
    drafter=specexec,
    label=lambda plan: f"tree of {plan.size}",
    options=lambda plan: f"--speculate tree --budget {plan.budget} --depth {plan.depth} --width {plan.width}",
)


# They ask for a head and nothing else. All other methods take a head as they take a draft model.
_OF_HEADS: tuple[tuple[HeadKind, str, str], ...] = (
    (
        "eagle3",
        "EAGLE-3, arXiv 2503.01840",
        "where a tree pays and a head was trained for this target: it drafts better than a small model of its cost",
    ),
    (
        "mtp",
        "Gloeckle et al., arXiv 2404.19737; DeepSeek-V3, 2412.19437",
        "where drafting pays and the target has MTP layers, which take the memory of a layer or two",
    ),
    (
        "dflash",
        "DFlash, arXiv 2602.06036",
        "where a head was trained for this target, and draft passes take time: a whole tree needs one",
    ),
)
EAGLE3, MTP, DFLASH = (
    Method(head, "tree", f"{paper}, in trees of SpecExec", pays, specexec, needs=(HEADS[head],), head=head)
    for head, paper, pays in _OF_HEADS
)

"""Every method by its name, with its paper and when it pays.

A new method is a file in `drafters/` or `acceptance/` and an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.errors import UsageError
from specrun.sampling import Sampler
from specrun.sampling.randomness import fresh
from specrun.speculation.drafters.chain import ChainDrafter
from specrun.speculation.drafters.cost_aware import CostAwareDrafter
from specrun.speculation.drafters.drafter import Drafter
from specrun.speculation.drafters.guessed import GuessedDrafter
from specrun.speculation.drafters.specexec import SpecExecDrafter, sharpness_at
from specrun.speculation.drafters.static import StaticDrafter
from specrun.speculation.method import ACCEPTANCE, DATASTORE, DRAFT, PROFILE, Drafting, Method, chain_shape
from specrun.speculation.papers import (
    by_node,
    k_seq,
    multi_step,
    recursive_rejection,
    sequoia,
    speculative_sampling,
    walk_block,
    walk_typical,
)
from specrun.speculation.papers.confidence import (
    CapeDrafter,
    ConfidenceDrafter,
    adaedl_stops,
    disco_stops,
    specdec_stops,
)
from specrun.speculation.papers.dynamic_depth import DynamicDepthDrafter
from specrun.speculation.papers.opt_tree import OptTreeDrafter
from specrun.speculation.papers.sampled import Draw, SampledDrafter, SampledPathsDrafter
from specrun.speculation.plan import Plan
from specrun.speculation.sample_and_match import Accepted, sample_and_match
from specrun.speculation.shape import TreeShape, widest_branching
from specrun.speculation.tree import TokenTree

# Of the text itself, of what the target proposed, and of what the user names; as far as there are any.
ALL_SOURCES = ("suffix-automaton", "lookahead", "token-recycling", "rest", "history")
COPIED_NODES = 32  # that a tree from sources may have where pass times are known: a copied line has as many tokens


def _specexec(d: Drafting) -> Drafter:
    return SpecExecDrafter(d.source, sharpness_at(d.sampler.parameters.temperature))


def _adaptive(d: Drafting) -> Drafter:
    if d.guide is None:
        raise ValueError("an adaptive plan needs cost tables")
    return CostAwareDrafter(d.source, d.guide, d.sources)


def _guessed(d: Drafting) -> Drafter:
    return GuessedDrafter(d.guesses, d.guide)


def _sampled(draw: Draw) -> Callable[[Drafting], Drafter]:
    def drafter(d: Drafting) -> Drafter:
        # Greedily there is nothing to draw: the rules take the child that is the target's own choice, if there is one,
        # so the best candidates are the best draws.
        if d.sampler.parameters.temperature == 0:
            return StaticDrafter(d.source, d.shape)
        return SampledDrafter(d.model, d.sampler, d.shape, draw)

    return drafter


def _paths(d: Drafting) -> Drafter:
    n_paths = (d.plan.budget - 1) // max(d.plan.depth, 1)
    if d.sampler.parameters.temperature == 0:
        return StaticDrafter(d.source, TreeShape.branching((n_paths, *[1] * (d.plan.depth - 1))))
    return SampledPathsDrafter(d.model, d.sampler, n_paths)


_LIST = (
    Method("off", "plain", "", "where nothing else does", None, needs=()),
    Method(
        "chain", "chain", "Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318",
        "where a pass over a few tokens costs little more than over one, and a wider tree too much",
        lambda d: ChainDrafter(d.model, d.sampler),
    ),
    Method(
        "specdec++", "chain", "SpecDec++, arXiv 2405.19715", "as chain, where the draft's certainty varies much",
        lambda d: ConfidenceDrafter(d.source, specdec_stops), stops=True,
    ),
    Method(
        "disco", "chain", "DISCO, arXiv 2405.04304", "as chain, where the draft's certainty varies much",
        lambda d: ConfidenceDrafter(d.source, disco_stops), stops=True,
    ),
    Method(
        "adaedl", "chain", "AdaEDL, arXiv 2410.18351", "as chain, where the draft's certainty varies much",
        lambda d: ConfidenceDrafter(d.source, adaedl_stops), stops=True,
    ),
    Method(
        "cape", "tree", "GliDe with a CaPE, arXiv 2402.02082", "where some 20 tokens more in a pass cost little",
        lambda d: CapeDrafter(d.source),
    ),
    Method(
        "specexec", "tree", "SpecExec, arXiv 2406.02532", "where weights are offloaded, so that large passes are cheap",
        _specexec,
    ),
    Method(
        "opt-tree", "tree", "OPT-Tree, arXiv 2406.17276", "as specexec; it drafts less deep where that gains little",
        lambda d: OptTreeDrafter(d.source, d.guide), stops=True,
    ),
    Method(
        "ddd", "tree", "Dynamic depth decoding, arXiv 2409.00142; EAGLE-2, 2406.16858",
        "as specexec, with fewer draft passes where the draft is unsure",
        lambda d: DynamicDepthDrafter(d.source), stops=True,
    ),
    Method(
        "sequoia-match", "tree", "Sequoia's trees, arXiv 2402.12374; shared noise, 2408.07978",
        "as specexec, where growing a tree node by node takes too long", lambda d: StaticDrafter(d.source, d.shape),
        needs=(DRAFT, ACCEPTANCE),
    ),
    Method(
        "adaptive", "planner", "this project; after SpecExec and OPT-Tree",
        "wherever any tree or chain does: each step is as large as this machine makes worth it", _adaptive,
        needs=(DRAFT, PROFILE), stops=True,
    ),
    Method(
        "prompt-lookup", "draft source", "Prompt lookup; n-gram speculation of llama.cpp",
        "where the answer copies from the prompt, without any draft model", _guessed, needs=(),
        sources=("prompt-lookup",),
    ),
    Method(
        "suffix-automaton", "draft source", "SAM decoding, arXiv 2411.10666",
        "where the answer copies from the prompt or itself, without any draft model", _guessed, needs=(),
        sources=("suffix-automaton",),
    ),
    Method(
        "token-recycling", "draft source", "Token Recycling, arXiv 2408.08696",
        "where passes of a few tokens are cheap and there is no draft model", _guessed, needs=(),
        sources=("token-recycling",),
    ),
    Method(
        "lookahead", "draft source", "Lookahead's n-gram pool, arXiv 2402.02057; Ouroboros's phrases, 2402.13720",
        "where the target repeats itself, without any draft model", _guessed, needs=(), sources=("lookahead",),
    ),
    Method(
        "rest", "draft source", "REST, arXiv 2311.08252", "where the answer is like the files of a datastore",
        _guessed, needs=(DATASTORE,), sources=("rest",),
    ),
    Method(
        "draftless", "draft source", "this project; all sources together", "where there is no draft model",
        _guessed, needs=(), sources=ALL_SOURCES,
    ),
    Method(
        "merged", "planner", "this project; adaptive with all sources",
        "wherever adaptive does, and more where text is copied",
        _adaptive, needs=(DRAFT, PROFILE), stops=True, sources=ALL_SOURCES,
    ),
    Method(
        "speculative-sampling", "acceptance rule", "Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318",
        "less often than chain, which shares its noise", _sampled("independent"), by_node(speculative_sampling),
        shape=chain_shape,
    ),
    Method(
        "block-verification", "acceptance rule", "Sun et al., arXiv 2403.10444",
        "wherever speculative-sampling does, never less", _sampled("independent"), walk_block, shape=chain_shape,
    ),
    Method(
        "specinfer", "acceptance rule", "SpecInfer's multi-step rule, arXiv 2305.09781; multi-candidate, 2401.06706",
        "less often than rsd, as draws repeat", _sampled("independent"), by_node(multi_step), shape=widest_branching,
    ),
    Method(
        "rsd", "acceptance rule",
        "Recursive rejection, arXiv 2402.14160; multi-candidate without replacement, 2401.06706",
        "where large passes are cheap and shared noise is not wanted", _sampled("without replacement"),
        by_node(recursive_rejection), shape=widest_branching,
    ),
    Method(
        "spectr", "acceptance rule", "SpecTr's k-SEQ, arXiv 2310.15141", "less often than rsd, as draws repeat",
        _paths, by_node(k_seq),
    ),
    Method(
        "sequoia", "acceptance rule", "Sequoia, arXiv 2402.12374",
        "where large passes are cheap and shared noise is not wanted", _sampled("without replacement, then uniform"),
        by_node(sequoia), needs=(DRAFT, ACCEPTANCE),
    ),
    Method(
        "typical", "acceptance rule", "Medusa's typical acceptance, arXiv 2401.10774",
        "where the text may be another than the target's: this one is lossy", _specexec, walk_typical,
    ),
)  # fmt: skip

METHODS = {method.name: method for method in _LIST}
# The first is what `--speculate` calls it; the rules of the others' paper are those of the methods.
ALIASES = {"tree": "specexec", "multi-candidate": "specinfer", "multi-candidate-without-replacement": "rsd"}


def find(name: str) -> Method:
    """The method of this name, or of this other name. Raises UsageError for a name that is none."""
    name = ALIASES.get(name, name)
    if name not in METHODS:
        raise UsageError(f"no method {name}; `specrun methods` lists them")
    return METHODS[name]


def drafter_for(drafting: Drafting) -> Drafter | None:
    """The drafter that a plan asks for, or None for `off` (and for a depth that leaves nothing to draft).

    Raises ValueError if the drafter needs what is not there.
    """
    drafter = METHODS[drafting.plan.method].drafter
    return drafter(drafting) if drafter and drafting.plan.depth else None


def accept(plan: Plan, tree: TokenTree, rows: NDArray[np.float32], sampler: Sampler, tokens: Sequence[int]) -> Accepted:
    """What a pass commits of a tree of `plan`. rows: float32[len(tree), n_vocab], the target's logits after each node.
    tokens: all committed text, its last token the root.
    """
    rule = METHODS[plan.method].accept
    recent = sampler.recent(tokens)
    if rule is None or sampler.parameters.temperature == 0:
        return sample_and_match(tree, rows, sampler.sample, len(tokens), recent)

    def probabilities(node: int, committed: Sequence[int]) -> NDArray[np.float64]:
        return sampler.distribution(rows[node], [*recent, *committed]).dense(sampler.n_vocab)

    proposals = tree.proposals or (None,) * len(tree)
    return rule(tree, proposals, probabilities, fresh(sampler.parameters.seed, len(tokens), "accept"))

"""The papers' methods that no automatic choice takes, kept for comparing with `--method` and `specrun bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from specrun.speculation.drafter import Drafter
from specrun.speculation.drafters.guessed import guessed
from specrun.speculation.drafters.specexec import specexec
from specrun.speculation.drafters.static import StaticDrafter
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import ACCEPTANCE, DATASTORE, DRAFT, Drafting, Method, chain_shape
from specrun.speculation.papers.growers import (
    BEAM,
    LevelDrafter,
    Stop,
    adaedl_stops,
    cape_count,
    chain,
    disco_stops,
    dynamic_depth,
    opt_tree,
    specdec_stops,
)
from specrun.speculation.papers.rules import PaperRule, by_node, k_seq, multi_step, sequoia, walk_block, walk_typical
from specrun.speculation.papers.sampled import Draw, SampledDrafter
from specrun.speculation.shape import MAX_LEAVES, TreeShape


def _model(drafting: Drafting) -> ModelCandidates:
    """The draft model itself, whose probabilities these methods need; ValueError for a recording of its candidates."""
    source = drafting.need_source()
    if not isinstance(source, ModelCandidates):
        raise ValueError(f"{drafting.plan.method.name} needs a draft model, not a recording")
    return source


def _sampled(draw: Draw) -> Callable[[Drafting], Drafter]:
    def drafter(drafting: Drafting) -> Drafter:
        # Greedily there is nothing to draw: the rules take the child that is the target's own choice, if there is one,
        # so the best candidates are the best draws.
        source, shape = _model(drafting), drafting.need_shape()
        return SampledDrafter(source, shape, draw) if drafting.temperature else StaticDrafter(source, shape)

    return drafter


def _stopping(name: str, paper: str, stop: Stop) -> Method:
    pays = "where chain does, if the draft's confidence varies much"
    return Method(name, "chain", paper, pays, lambda d: chain(_model(d), stop), stops=True)


def _source(name: str, paper: str, pays: str, *needs: str) -> Method:
    return Method(name, "draft source", paper, pays, guessed, needs=needs, sources=(name,))


def forked(budget: int, depth: int, stem: int = 0) -> TreeShape:
    """As many paths as fit that have their first `stem` tokens in common, as deep as `depth` allows, but shorter where
    otherwise not even two would fit. SpecInfer (arXiv 2305.09781, section 6.1) has <1,1,3,1,1,1,1,1>, SpecTr (arXiv
    2310.15141) up to 8 paths of 8 tokens, which is a budget of 65. budget: at least 2.
    """
    stem = max(min(stem, depth - 1, budget - 3), 0)
    room = budget - 1 - stem
    length = min(depth - stem, max(room // 2, 1))
    return TreeShape.branching([*[1] * stem, min(room // length, MAX_LEAVES), *[1] * (length - 1)])


def branching(budget: int, depth: int) -> TreeShape:
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


PAPERS = (
    _stopping("specdec++", "SpecDec++, arXiv 2405.19715", specdec_stops),
    _stopping("disco", "DISCO, arXiv 2405.04304", disco_stops),
    _stopping("adaedl", "AdaEDL, arXiv 2410.18351", adaedl_stops),
    Method(
        "cape", "tree", "GliDe with a CaPE, arXiv 2402.02082", "where 20 more tokens in a pass cost little",
        lambda d: chain(_model(d), count=cape_count),
    ),
    Method(
        "opt-tree", "tree", "OPT-Tree, arXiv 2406.17276",
        "where specexec does; it makes fewer draft passes where further ones gain little",
        lambda d: LevelDrafter(_model(d), opt_tree(d.guide)), stops=True,
    ),
    Method(
        "ddd", "tree", "Dynamic depth decoding, arXiv 2409.00142; EAGLE-2, 2406.16858",
        "where specexec does; it makes fewer draft passes where the draft's probabilities are low",
        lambda d: LevelDrafter(_model(d), dynamic_depth), stops=True, width=BEAM,
    ),
    _source(
        "prompt-lookup", "Prompt lookup; n-gram speculation of llama.cpp",
        "where the answer copies from the prompt and there is no draft model",
    ),
    _source(
        "suffix-automaton", "SAM decoding, arXiv 2411.10666",
        "where the answer copies from the prompt or itself and there is no draft model",
    ),
    _source(
        "token-recycling", "Token Recycling, arXiv 2408.08696",
        "where passes over a few tokens cost little and there is no draft model",
    ),
    _source(
        "lookahead", "Lookahead's n-gram pool, arXiv 2402.02057; Ouroboros's phrases, 2402.13720",
        "where the target repeats itself and there is no draft model",
    ),
    _source("rest", "REST, arXiv 2311.08252", "where the answer resembles the files of a datastore", DATASTORE),
    Method(
        "speculative-sampling", "acceptance rule", "Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318",
        "where chain does, but less, because target and draft do not share their noise",
        _sampled("independent"), PaperRule(by_node(multi_step)), shape=chain_shape,
    ),
    Method(
        "block-verification", "acceptance rule", "Sun et al., arXiv 2403.10444",
        "wherever speculative-sampling does, and never less", _sampled("independent"), PaperRule(walk_block),
        shape=chain_shape,
    ),
    Method(
        "specinfer", "acceptance rule", "SpecInfer's multi-step rule, arXiv 2305.09781; multi-candidate, 2401.06706",
        "where rsd does, if the draft is right often enough for deep paths", _sampled("independent"),
        PaperRule(by_node(multi_step)),
        budget=21, shape=lambda budget, depth: forked(budget, depth, stem=2),
    ),
    Method(
        "rsd", "acceptance rule",
        "Recursive rejection, arXiv 2402.14160; multi-candidate without replacement, 2401.06706",
        "where large passes cost little and shared noise is not wanted", _sampled("without replacement"),
        PaperRule(by_node(sequoia)), shape=branching,
    ),
    Method(
        "spectr", "acceptance rule", "SpecTr's k-SEQ, arXiv 2310.15141",
        "where specinfer does, if the very next token is in doubt", _sampled("independent"), PaperRule(by_node(k_seq)),
        budget=17, shape=forked,
    ),
    Method(
        "sequoia", "acceptance rule", "Sequoia, arXiv 2402.12374",
        "where large passes cost little and shared noise is not wanted", _sampled("without replacement, then uniform"),
        PaperRule(by_node(sequoia)), needs=(DRAFT, ACCEPTANCE),
    ),
    Method(
        "typical", "acceptance rule", "Medusa's typical acceptance, arXiv 2401.10774",
        "where the text may differ from the target's, because it is lossy", specexec,
        PaperRule(walk_typical, lossless=False),
    ),
)  # fmt: skip

"""The papers' methods that no automatic choice takes, kept for comparing with `--method` and `specrun bench`."""

from __future__ import annotations

from typing import Any

from specrun.speculation.drafter import Drafter
from specrun.speculation.drafters.specexec import specexec
from specrun.speculation.drafters.static import StaticDrafter
from specrun.speculation.method import ACCEPTANCE, DRAFT, Drafting, Method, chain_shape
from specrun.speculation.papers import growers, rules
from specrun.speculation.papers.growers import LevelDrafter
from specrun.speculation.papers.rules import AcceptTree, Draw, SampledDrafter, by_node
from specrun.speculation.shape import TreeShape


def _stopping(name: str, paper: str) -> Method:
    pays = "where chain does, if the draft's confidence varies much"
    return Method(name, "chain", paper, pays, lambda d: growers.chain(d.need_source(), growers.STOPS[name]), stops=True)


def _rule(name: str, paper: str, pays: str, draws: Draw, walk: AcceptTree, **more: Any) -> Method:
    def drafter(drafting: Drafting) -> Drafter:
        # Greedily there is nothing to draw: the rules take the child that is the target's own choice, if there is one,
        # so the best candidates are the best draws.
        source, shape = drafting.need_source(), drafting.need_shape()
        return SampledDrafter(source, shape, draws) if drafting.temperature else StaticDrafter(source, shape)

    return Method(name, "acceptance rule", paper, pays, drafter, rules.rule_of(walk), **more)


PAPERS = (
    _stopping("specdec++", "SpecDec++, arXiv 2405.19715"),
    _stopping("disco", "DISCO, arXiv 2405.04304"),
    _stopping("adaedl", "AdaEDL, arXiv 2410.18351"),
    Method(
        "cape", "tree", "GliDe with a CaPE, arXiv 2402.02082", "where 20 more tokens in a pass cost little",
        lambda d: growers.chain(d.need_source(), count=growers.cape_count),
    ),
    Method(
        "opt-tree", "tree", "OPT-Tree, arXiv 2406.17276",
        "where specexec does; it makes fewer draft passes where further ones gain little",
        lambda d: LevelDrafter(d.need_source(), growers.opt_tree(d.guide)), stops=True,
    ),
    Method(
        "ddd", "tree", "Dynamic depth decoding, arXiv 2409.00142; EAGLE-2, 2406.16858",
        "where specexec does; it makes fewer draft passes where the draft's probabilities are low",
        lambda d: LevelDrafter(d.need_source(), growers.dynamic_depth), stops=True, width=growers.BEAM,
    ),
    _rule(
        "speculative-sampling", "Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318",
        "where chain does, but less, because target and draft do not share their noise",
        "independent", by_node(rules.multi_step), shape=chain_shape,
    ),
    _rule(
        "block-verification", "Sun et al., arXiv 2403.10444", "wherever speculative-sampling does, and never less",
        "independent", rules.walk_block, shape=chain_shape,
    ),
    _rule(
        "specinfer", "SpecInfer's multi-step rule, arXiv 2305.09781; multi-candidate, 2401.06706",
        "where rsd does, if the draft is right often enough for deep paths", "independent", by_node(rules.multi_step),
        budget=21, shape=lambda budget, depth: TreeShape.forked(budget, depth, stem=2),
    ),
    _rule(
        "rsd", "Recursive rejection, arXiv 2402.14160; multi-candidate without replacement, 2401.06706",
        "where large passes cost little and shared noise is not wanted", "without replacement", by_node(rules.sequoia),
        shape=TreeShape.doubling,
    ),
    _rule(
        "spectr", "SpecTr's k-SEQ, arXiv 2310.15141", "where specinfer does, if the very next token is in doubt",
        "independent", by_node(rules.k_seq), budget=17, shape=TreeShape.forked,
    ),
    _rule(
        "sequoia", "Sequoia, arXiv 2402.12374", "where large passes cost little and shared noise is not wanted",
        "without replacement, then uniform", by_node(rules.sequoia), needs=(DRAFT, ACCEPTANCE),
    ),
    Method(
        "typical", "acceptance rule", "Medusa's typical acceptance, arXiv 2401.10774",
        "where the text may differ from the target's, because it is lossy", specexec,
        rules.rule_of(rules.walk_typical), lossless=False,
    ),
)  # fmt: skip

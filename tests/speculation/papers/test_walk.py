"""Along trees and chains, texts are distributed as those of plain sampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.accept import Accepted, accept
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import Drafting, Method
from specrun.speculation.papers.growers import Proposal
from specrun.speculation.papers.rules import AcceptTree, by_node, k_seq, multi_step, sequoia, walk_block, walk_typical
from specrun.speculation.registry import METHODS
from specrun.speculation.tree import ROOT, TokenTree, TreeShape
from specrun.verifying.findings import chi_square_p_value
from tests.speculation.papers.cases import independent, then_uniform, without_replacement
from tests.speculation.papers.toy import (
    TableModel,
    Tables,
    Target,
    Text,
    chain,
    completed,
    drafted,
    tables,
    text_at,
    text_probabilities,
)

LOSSLESS = [method for method in METHODS.values() if method.samples and method.lossless]
DEPTH = 2
N_TIMES = 1000
P, Q = tables(0, DEPTH + 1), tables(1, DEPTH + 1)

WAYS = {
    "speculative sampling": (by_node(multi_step), independent, 1),
    "multi-step": (by_node(multi_step), independent, 2),
    "recursive rejection": (by_node(sequoia), without_replacement, 2),
    "Sequoia": (by_node(sequoia), then_uniform, 3),
    "k-SEQ": (by_node(k_seq), independent, 2),
    "block verification": (walk_block, independent, 1),
}


def assert_plain(texts: Iterable[Text], p: Tables, length: int) -> None:
    counts = Counter(texts)
    expected = text_probabilities(p, length)
    observed = np.array([counts[text] for text in expected])
    assert not any(n for n, chance in zip(observed, expected.values(), strict=True) if chance == 0)
    assert chi_square_p_value(observed, observed.sum() * np.array(list(expected.values()))) > 1e-4


def is_well_formed(accepted: Accepted, tree: TokenTree) -> bool:
    committed = tuple(accepted.tokens[:-1])
    return accepted.path == tree.path_to(accepted.path[-1]) and text_at(tree, accepted.path[-1]) == committed


@pytest.mark.parametrize("way", WAYS)
def test_the_texts_are_those_of_plain_sampling(way: str) -> None:
    accept, draft, k = WAYS[way]
    rng = np.random.default_rng(2)
    texts = []
    for _ in range(N_TIMES):
        tree, proposals = drafted(Q, DEPTH, k, draft, rng)
        accepted = accept(tree, proposals, Target(P, tree), rng)
        assert is_well_formed(accepted, tree)
        texts.append(completed(accepted, P, DEPTH + 1, rng))
    assert_plain(texts, P, DEPTH + 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", LOSSLESS, ids=lambda method: method.name)
def test_in_trees_of_the_papers_shapes_the_texts_are_those_of_plain_sampling(method: Method) -> None:
    """The three tokens of which SpecInfer's shape draws the last with several branches."""
    length = 3
    p, q = tables(8, length), tables(9, length)
    plan = method.plan(depth=length) if method.is_chain else method.plan(12, length)
    target, plan = TableModel(p), plan.shaped(TreeShape.branching((2, 2, 1))) if method.wants_shape else plan
    texts, n_accepted = [], 0
    for seed in range(1500):
        sampling = SamplingParameters(temperature=1.0, top_k=0, top_p=1, min_p=0, seed=seed)
        sampler = Sampler(sampling, len(p[()]))
        drafter = Drafting(plan, 1.0, ModelCandidates(TableModel(q), sampler)).drafter()
        assert drafter is not None
        draft = drafter.draft([0], DraftLimits(plan.budget, plan.depth, plan.width, 256))
        rows = np.stack([target.logits(text_at(draft.tree, node)) for node in range(len(draft.tree))])
        accepted = accept(plan.method.rule, draft, rows, sampler, [0])
        assert is_well_formed(accepted, draft.tree)
        texts.append(completed(accepted, p, length, np.random.default_rng(seed)))
        n_accepted += len(accepted.path) - 1
    assert_plain(texts, p, length)
    assert n_accepted > len(texts)


@pytest.mark.parametrize("way", WAYS)
def test_a_draft_that_is_the_target_is_accepted_to_the_end(way: str) -> None:
    accept, draft, k = WAYS[way]
    rng = np.random.default_rng(3)
    for _ in range(50):
        tree, proposals = drafted(P, DEPTH, k, draft, rng)
        assert len(accept(tree, proposals, Target(P, tree), rng).tokens) == DEPTH + 1


@pytest.mark.parametrize("accept", [accept for accept, _, _ in WAYS.values()] + [walk_typical], ids=[*WAYS, "typical"])
def test_a_root_alone_is_plain_decoding(accept: AcceptTree) -> None:
    tree = TokenTree.root_only(7)
    rng = np.random.default_rng(4)
    results = [accept(tree, [None], Target(P, tree), rng) for _ in range(N_TIMES)]
    assert all(accepted.path == [ROOT] for accepted in results)
    assert_plain([tuple(accepted.tokens) for accepted in results], P, 1)


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in WAYS if way != "block verification"])
def test_children_may_be_cut_from_the_tree_but_not_from_the_draws(way: str) -> None:
    accept, draft, k = WAYS[way]
    rng = np.random.default_rng(5)
    texts = []
    for _ in range(N_TIMES):
        tree, proposals = drafted(Q, DEPTH, k, draft, rng)
        # As biased as a cut can be: by the token.
        mask = np.array([0 not in text_at(tree, node) for node in range(len(tree))])
        cut = tree.keep(mask)
        accepted = accept(cut, [proposals[node] for node in np.flatnonzero(mask)], Target(P, cut), rng)
        assert is_well_formed(accepted, cut)
        texts.append(completed(accepted, P, DEPTH + 1, rng))
    assert_plain(texts, P, DEPTH + 1)


def test_a_chain_may_be_cut_by_its_length() -> None:
    rng = np.random.default_rng(6)
    texts = []
    for _ in range(N_TIMES):
        tree, proposals = chain(Q, DEPTH, rng)
        cut = tree.limited(max_nodes=2, max_leaves=1)
        texts.append(completed(walk_block(cut, proposals[:2], Target(P, cut), rng), P, DEPTH + 1, rng))
    assert_plain(texts, P, DEPTH + 1)


def test_a_token_that_was_not_accepted_ends_the_pass_even_where_it_is_a_child() -> None:
    tree = TokenTree.chain([0, 1, 2])
    proposal = Proposal(np.arange(3), np.full(3, 1 / 3), (1,))
    accept = by_node(lambda _p, _q, draws, _rng: (draws[0], False))
    accepted = accept(tree, [proposal, None, None], lambda _node, _tokens: np.ones(3), np.random.default_rng(0))
    assert accepted == Accepted([ROOT], [1])


def undrawn(tree: TokenTree, proposals: list[Proposal | None]) -> tuple[TokenTree, list[Proposal | None]]:
    return tree, [proposals[0], None, None]


def other_token(tree: TokenTree, proposals: list[Proposal | None]) -> tuple[TokenTree, list[Proposal | None]]:
    return TokenTree.chain([0, *((tree.tokens[1:] + 1) % 3).tolist()]), proposals


def forked(tree: TokenTree, proposals: list[Proposal | None]) -> tuple[TokenTree, list[Proposal | None]]:
    return TokenTree.build(tree.tokens.tolist(), [-1, 0, 0], [0, -1, -2]), proposals


@pytest.mark.parametrize("spoil", [undrawn, other_token, forked])
def test_block_verification_needs_a_chain_of_draws(spoil: Callable) -> None:
    tree, proposals = spoil(*chain(Q, DEPTH, np.random.default_rng(7)))
    with pytest.raises(ValueError, match="needs a chain"):
        walk_block(tree, proposals, lambda _node, _tokens: P[()], np.random.default_rng(7))


def test_a_proposal_as_a_row() -> None:
    proposal = Proposal(np.array([4, 1]), np.array([0.25, 0.75]), (1,))
    np.testing.assert_array_equal(proposal.dense(6), [0, 0.75, 0, 0, 0.25, 0])

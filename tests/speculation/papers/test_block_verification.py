"""Block verification keeps the target's distribution and accepts at least as much as token-by-token rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from specrun.speculation.papers.growers import Proposal
from specrun.speculation.papers.rules import by_node, draw, multi_step, walk_block
from specrun.speculation.tree import TokenTree
from specrun.verifying.findings import chi_square_p_value
from tests.speculation.papers.cases import PAIRS, independent
from tests.speculation.papers.theory import block_length, tokenwise_length
from tests.speculation.papers.toy import Target, chain, tables

N_TIMES = 2000


def block(
    ps: Sequence[np.ndarray], qs: Sequence[np.ndarray], tokens: Sequence[int], rng: np.random.Generator
) -> tuple[int, int]:
    """How many of the tokens of a chain are accepted, and the token after them. tokens[i] was drawn from qs[i]."""
    proposals = [Proposal(np.arange(len(q)), q, (token,)) for q, token in zip(qs, tokens, strict=True)]
    tree = TokenTree.chain([0, *tokens])
    accepted = walk_block(tree, [*proposals, None], lambda node, _tokens: ps[node], rng)
    return len(accepted.path) - 1, accepted.tokens[-1]


@pytest.mark.parametrize("pair", PAIRS)
def test_the_first_two_tokens_are_distributed_as_the_targets(pair: str) -> None:
    p, q = PAIRS[pair]
    rng = np.random.default_rng(0)
    counts = np.zeros((len(p), len(p)))
    for tokens in independent(q, N_TIMES, 2, rng).tolist():
        n_accepted, last = block([p] * 3, [q] * 2, tokens, rng)
        text = [*tokens[:n_accepted], last, draw(p, rng)]
        counts[text[0], text[1]] += 1
    expected = N_TIMES * np.outer(p, p)
    assert not counts[expected == 0].any()
    assert chi_square_p_value(counts.ravel(), expected.ravel()) > 1e-4


def test_after_an_unlikely_token_only_its_share_of_the_target_is_left() -> None:
    # p_1 = 1/2: what follows an accepted 0 must come from norm(max(p / 2 - q, 0)), which only token 0 is in.
    ps = [np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.3, 0.2]), np.full(3, 1 / 3)]
    qs = [np.array([1.0, 0.0, 0.0]), np.array([0.05, 0.2, 0.75])]
    rng = np.random.default_rng(1)
    counts = np.zeros(4)
    for second in rng.choice(3, size=N_TIMES, p=qs[1]).tolist():
        n_accepted, last = block(ps, qs, [0, second], rng)
        text = [*[0, second][:n_accepted], last, draw(ps[1], rng)]
        counts[text[1] if text[0] == 0 else 3] += 1
    assert chi_square_p_value(counts, N_TIMES * np.array([0.25, 0.15, 0.1, 0.5])) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.parametrize("seed", [0, 2, 4])
def test_the_accepted_length_is_the_theorys(seed: int, length: int) -> None:
    p, q = tables(seed, length), tables(seed + 1, length)
    rng = np.random.default_rng(seed)
    lengths: list[tuple[int, int]] = []
    for _ in range(1000):
        tree, proposals = chain(q, length, rng)
        ways = (walk_block, by_node(multi_step))
        block, tokenwise = (len(accept(tree, proposals, Target(p, tree), rng).tokens) - 1 for accept in ways)
        lengths.append((block, tokenwise))
    expected = block_length(p, q, length), tokenwise_length(p, q, length)
    assert expected[0] >= expected[1]
    error = np.std(lengths, axis=0) / np.sqrt(len(lengths))
    assert (np.abs(np.mean(lengths, axis=0) - expected) < 4 * error).all()


def test_it_accepts_more_where_a_likely_token_follows_an_unlikely_one() -> None:
    # The paper's example: the target writes 0 with 1/3, the draft with 2/3, both independently of the text.
    p, q = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
    texts = [(), (0,), (1,)]
    pair = dict.fromkeys(texts, p), dict.fromkeys(texts, q)
    assert tokenwise_length(*pair, 2) == pytest.approx(10 / 9)
    assert block_length(*pair, 2) == pytest.approx(11 / 9)
    rng = np.random.default_rng(1)
    lengths = [block([p] * 3, [q] * 2, tokens, rng)[0] for tokens in independent(q, 5000, 2, rng).tolist()]
    assert np.mean(lengths) == pytest.approx(11 / 9, abs=0.04)


def test_an_empty_chain_is_plain_decoding() -> None:
    p = np.array([0.0, 1.0, 0.0])
    assert block([p], [], [], np.random.default_rng(0)) == (0, 1)


def test_an_unlikely_token_is_made_up_for_and_the_path_after_an_impossible_one_is_not() -> None:
    certain = np.array([0.0, 1.0, 0.0])
    even = np.full(3, 1 / 3)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        # p_1 = 2/3 and p_2 = min(2/3 * 3, 1) = 1: always accepted, where token by token a third is refused.
        likely = np.array([0.0, 2 / 3, 1 / 3])
        assert block([likely, certain, even], [certain, even], [1, 1], rng)[0] == 2
        assert block([certain, certain, even], [even, certain], [0, 1], rng) == (0, 1)

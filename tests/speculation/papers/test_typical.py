"""Typical acceptance takes tokens above its threshold and is lossy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specrun.speculation.accept import Accepted
from specrun.speculation.papers.rules import is_typical, walk_typical
from specrun.speculation.tree import NO_PARENT, ROOT, TokenTree
from specrun.verifying.findings import chi_square_p_value
from tests.speculation.papers.cases import PAIRS, normalized
from tests.speculation.papers.toy import Target, chain, tables, text_at


@pytest.mark.parametrize("pair", PAIRS)
def test_a_token_is_typical_above_the_lower_of_two_thresholds(pair: str) -> None:
    p, _ = PAIRS[pair]
    entropy = -sum(x * math.log(x) for x in p if x > 0)
    for token, x in enumerate(p):
        assert is_typical(p, token) == (x > 0.09 or x > 0.3 * math.exp(-entropy))


def test_the_entropy_lowers_the_threshold() -> None:
    flat, sharp = np.full(50, 0.02), normalized(0.98, 0.02)
    assert is_typical(flat, 7)
    assert not is_typical(sharp, 1)
    assert is_typical(sharp, 0)
    assert is_typical(normalized(0.88, 0.12), 1)  # above epsilon, below delta * exp(-H)


def test_the_longest_path_of_typical_tokens_is_taken() -> None:
    # 0 -> 1 -> 2 -> 1 and 0 -> 2 -> 2; the second 2 on the first path is followed by a token that is not typical.
    tree = TokenTree.build([0, 1, 2, 1, 2, 2], [NO_PARENT, 0, 1, 2, 0, 4], [0, -1, -2, -3, -1.5, -4])
    typical, one = np.array([0.2, 0.3, 0.5]), np.array([0.0, 0.0, 1.0])
    ends = {(): typical, (1,): typical, (1, 2): one, (2,): np.array([1.0, 0.0, 0.0])}
    accepted = walk_typical(tree, [None] * 6, lambda _node, tokens: ends[tuple(tokens)], np.random.default_rng(0))
    assert accepted == Accepted([0, 1, 2], [1, 2, 2])


def test_of_equally_long_paths_the_targets_likeliest_is_taken() -> None:
    # 0 -> 1 -> 1 has probability 0.4 * 0.6, 0 -> 2 -> 2 has 0.6 * 0.5.
    tree = TokenTree.build([0, 1, 1, 2, 2], [NO_PARENT, 0, 1, 0, 3], [0, -1, -2, -3, -4])
    ends = {(): np.array([0.0, 0.4, 0.6]), (1,): np.array([0.2, 0.6, 0.2]), (2,): np.array([0.3, 0.2, 0.5])}
    end = np.array([1.0, 0.0, 0.0])
    accepted = walk_typical(
        tree, [None] * 5, lambda _node, tokens: ends.get(tuple(tokens), end), np.random.default_rng(0)
    )
    assert accepted == Accepted([ROOT, 3, 4], [2, 2, 0])


@pytest.mark.slow
def test_only_typical_tokens_are_accepted_and_the_texts_are_not_the_targets() -> None:
    p, q = tables(0, 2), tables(1, 2)
    rng = np.random.default_rng(0)
    counts = np.zeros(3)
    refused = 0
    for _ in range(1500):
        tree, proposals = chain(q, 2, rng)
        accepted = walk_typical(tree, proposals, Target(p, tree), rng)
        drafted = text_at(tree, len(tree) - 1)
        kept = tuple(accepted.tokens[:-1])
        assert kept == drafted[: len(kept)]
        assert all(is_typical(p[kept[:i]], token) for i, token in enumerate(kept))
        assert len(kept) == len(drafted) or not is_typical(p[kept], drafted[len(kept)])
        assert p[kept][accepted.tokens[-1]] > 0
        refused += len(kept) < len(drafted)
        counts[accepted.tokens[0]] += 1
    assert refused > 0
    possible = p[()] > 0
    assert chi_square_p_value(counts[possible], 1500 * p[()][possible]) < 1e-9

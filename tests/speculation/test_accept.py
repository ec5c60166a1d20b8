"""Sample and match walks exactly as far as the target's own samples lead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from specrun.speculation.accept import Accepted, sample_and_match
from specrun.speculation.tree import NO_PARENT, ROOT, TokenTree
from tests.trees import random_tree

N_VOCAB = 50


def greedy(row: np.ndarray, _position: int, _recent: Sequence[int]) -> int:
    return int(row.argmax())


def one_hot_rows(tokens: Sequence[int]) -> np.ndarray:
    return np.eye(N_VOCAB, dtype=np.float32)[list(tokens)]


def test_it_follows_matching_children_and_ends_with_the_targets_own_token() -> None:
    tree = TokenTree.build([1, 2, 3, 4, 5], [NO_PARENT, 0, 0, 2, 3], [0, -2, -1, -2, -3])
    # After depth-first ordering: 1, 3, 4, 5, 2.
    accepted = sample_and_match(tree, one_hot_rows([3, 4, 9, 9, 9]), greedy, 10, ())
    assert [int(tree.tokens[node]) for node in accepted.path] == [1, 3, 4]
    assert accepted.tokens == [3, 4, 9]


def test_nothing_matches() -> None:
    accepted = sample_and_match(TokenTree.chain([1, 2, 3]), one_hot_rows([7, 7, 7]), greedy, 10, ())
    assert accepted == Accepted([ROOT], [7])


def test_a_root_alone_is_plain_decoding() -> None:
    assert sample_and_match(TokenTree.root_only(1), one_hot_rows([7]), greedy, 10, ()) == Accepted([ROOT], [7])


def test_positions_and_recent_tokens_are_those_of_the_path() -> None:
    calls: list[tuple[int, list[int]]] = []

    def recorded(row: np.ndarray, position: int, recent: Sequence[int]) -> int:
        calls.append((position, list(recent)))
        return int(row.argmax())

    sample_and_match(TokenTree.chain([1, 2, 3]), one_hot_rows([2, 3, 4]), recorded, 10, [8, 1])
    assert calls == [(10, [8, 1]), (11, [8, 1, 2]), (12, [8, 1, 2, 3])]


@pytest.mark.parametrize("seed", range(20))
def test_the_committed_tokens_do_not_depend_on_the_tree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, 60, N_VOCAB, root=3)

    # A target whose row after a path is a function of the path's tokens.
    def row_after(tokens: Sequence[int]) -> np.ndarray:
        return np.random.default_rng([seed, *tokens]).standard_normal(N_VOCAB).astype(np.float32)

    rows = np.stack([row_after(tree.tokens[tree.path_to(node)].tolist()) for node in range(len(tree))])
    accepted = sample_and_match(tree, rows, greedy, 0, ())
    text = [3]
    while len(text) <= len(accepted.tokens):
        text.append(int(row_after(text).argmax()))
    assert accepted.tokens == text[1:]


def test_a_part_of_it_commits_as_many_tokens() -> None:
    accepted = Accepted([0, 1, 2], [5, 6, 7])
    assert accepted.first(2) == Accepted([0, 1], [5, 6])
    assert accepted.first(9) == accepted

"""The token tree's order and leaf ranges, and the attention mask that follows from them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from specrun.speculation.tree import NO_PARENT, ROOT, TokenTree
from tests.trees import random_tree


@pytest.fixture(params=range(20))
def tree(request: pytest.FixtureRequest) -> TokenTree:
    rng = np.random.default_rng(request.param)
    return random_tree(rng, n_nodes=int(rng.integers(1, 200)), n_vocab=1000)


def ancestors(tree: TokenTree, node: int) -> set[int]:
    return set(tree.path_to(node))


def test_parents_come_first_and_siblings_by_falling_score(tree: TokenTree) -> None:
    assert tree.parents[ROOT] == NO_PARENT
    for node, children in enumerate(tree.children):
        assert all(child > node for child in children)
        scores = tree.scores[children]
        assert (np.diff(scores) <= 0).all()


def test_the_first_path_is_consecutive_and_takes_the_best_child_each_time(tree: TokenTree) -> None:
    node = ROOT
    while tree.children[node]:
        assert tree.children[node][0] == node + 1
        node += 1


def test_attending_by_first_sequence_and_position_is_attending_ancestors(tree: TokenTree) -> None:
    # llama.cpp: a token sees the cells that carry its first sequence id at a position up to its own.
    for node in range(len(tree)):
        first = tree.first_leaves[node]
        carries = (tree.first_leaves <= first) & (first < tree.first_leaves + tree.leaf_counts)
        visible = np.flatnonzero(carries & (tree.depths <= tree.depths[node]))
        assert set(visible.tolist()) == ancestors(tree, node)


def test_leaves_are_numbered_without_gaps(tree: TokenTree) -> None:
    leaves = [node for node, children in enumerate(tree.children) if not children]
    assert tree.first_leaves[leaves].tolist() == list(range(tree.n_leaves))


def test_limiting_keeps_the_likeliest_nodes_and_is_a_tree(tree: TokenTree) -> None:
    for max_nodes in (1, 2, 7, 50):
        limited = tree.limited(max_nodes, max_leaves=10_000)
        assert len(limited) == min(max_nodes, len(tree))
        best = np.sort(tree.scores)[::-1][: len(limited)]
        assert np.allclose(np.sort(limited.scores)[::-1], best)
        assert_is_subtree(limited, tree)


def test_limiting_leaves_keeps_the_likeliest_leaf_paths_whole(tree: TokenTree) -> None:
    for max_leaves in (1, 3, 20):
        limited = tree.limited(10_000, max_leaves)
        assert limited.n_leaves == min(max_leaves, tree.n_leaves)
        assert_is_subtree(limited, tree)


def assert_is_subtree(small: TokenTree, large: TokenTree) -> None:
    paths = {tuple(large.tokens[large.path_to(node)].tolist()) for node in range(len(large))}
    for node in range(len(small)):
        assert tuple(small.tokens[small.path_to(node)].tolist()) in paths
    rebuilt = TokenTree.build(small.tokens.tolist(), small.parents.tolist(), small.scores.tolist())
    assert rebuilt.tokens.tolist() == small.tokens.tolist()
    assert rebuilt.parents.tolist() == small.parents.tolist()


def test_child_with_token_finds_only_children() -> None:
    tree = TokenTree.build([1, 2, 3, 4], [NO_PARENT, 0, 0, 1], [0.0, -1.0, -2.0, -3.0])
    assert tree.child_with_token(ROOT, 3) == 3
    assert tree.child_with_token(ROOT, 4) is None


def test_leaf_paths_are_chosen_by_all_of_their_nodes() -> None:
    """A likely inner node on the way to an unlikely leaf is worth more than a leaf of middling chance."""
    tree = TokenTree.build([0, 1, 2, 3, 4, 5, 6], [-1, 0, 1, 2, 0, 0, 0], [0, -0.2, -0.9, -2.5, -1.9, -2, -2.1])
    assert sorted(tree.limited(7, 3).tokens.tolist()) == [0, 1, 2, 3, 4, 5]
    assert sorted(tree.limited(4, 2).tokens.tolist()) == [0, 1, 2, 4]


@pytest.mark.parametrize("seed", range(30))
def test_no_choice_of_as_many_leaf_paths_is_worth_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, n_nodes=int(rng.integers(2, 25)), n_vocab=1000)
    max_leaves = int(rng.integers(1, 5))
    leaves = [node for node, children in enumerate(tree.children) if not children]

    def worth(chosen: tuple[int, ...]) -> float:
        return float(np.exp(tree.scores[list({node for leaf in chosen for node in tree.path_to(leaf)})]).sum())

    best = max(worth(chosen) for chosen in combinations(leaves, min(max_leaves, len(leaves))))
    limited = tree.limited(len(tree), max_leaves)
    assert limited.n_leaves <= max_leaves
    assert np.isclose(np.exp(limited.scores).sum(), best)

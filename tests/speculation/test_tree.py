"""The token tree's order and leaf ranges, the attention mask that follows from them, and shapes without tokens."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from specrun.speculation.tree import NO_PARENT, ROOT, TokenTree, TreeShape
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


# 0 - 1 - 2
#   |   ` 3 - 4
#   ` 5 - 6
SMALL = TreeShape((-1, 0, 1, 1, 3, 0, 5))
ACCEPTANCE = [0.5, 0.25]


@pytest.fixture(params=range(10))
def shape(request: pytest.FixtureRequest) -> TreeShape:
    rng = np.random.default_rng(request.param)
    return TreeShape(tuple(random_tree(rng, int(rng.integers(1, 120)), 1000).parents.tolist()))


def test_facts_of_a_small_tree() -> None:
    assert (SMALL.n_nodes, SMALL.depth, SMALL.n_leaves) == (7, 3, 3)
    assert SMALL.child_counts == [2, 2, 0, 1, 0, 1, 0]
    assert TreeShape.of_children(SMALL.child_counts) == SMALL
    assert SMALL.expanded_widths == (1, 2, 1), "leaves are not expanded"


def test_facts_agree_with_those_of_a_token_tree(shape: TreeShape) -> None:
    tree = TokenTree.build(range(shape.n_nodes), shape.parents, [-float(i) for i in range(shape.n_nodes)])
    assert tuple(tree.parents.tolist()) == shape.parents
    assert tuple(tree.depths.tolist()) == shape.depths
    assert (tree.depth, tree.n_leaves) == (shape.depth, shape.n_leaves)
    assert tree.children == shape.children


def test_what_is_expected_is_the_sum_of_products_by_rank() -> None:
    assert SMALL.expected(ACCEPTANCE) == pytest.approx(1 + 0.5 + 0.25 + 0.125 + 0.0625 + 0.25 + 0.125)
    assert SMALL.expected([0.5]) == pytest.approx(1 + 0.5 + 0.25), "a rank beyond the vector has no chance"


def test_chains_and_branching_trees() -> None:
    assert TreeShape.chain(0).parents == (-1,)
    assert TreeShape.chain(3).parents == (-1, 0, 1, 2)
    tree = TreeShape.branching((4, 2, 2, 1))
    assert [tree.depths.count(level) for level in range(5)] == [1, 4, 8, 16, 16]
    assert tree.parents[:6] == (-1, 0, 1, 2, 3, 2)


@pytest.mark.parametrize("counts", [(), (1,), (0, 0), (2, 0), (1, -1, 1), (0, 2, 0)], ids=str)
def test_numbers_of_children_that_make_no_tree_are_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="tree"):
        TreeShape.of_children(counts)


def test_equal_shapes_are_one_key() -> None:
    assert {TreeShape.chain(2): 1}[TreeShape((-1, 0, 1))] == 1


def test_cutting_keeps_whole_paths_of_ranks_within_the_bounds(shape: TreeShape) -> None:
    for max_nodes, max_depth in ((1, 5), (7, 100), (20, 3), (1000, 2), (5, 0)):
        cut = shape.cut(max_nodes, max_depth)
        assert cut.n_nodes == min(max_nodes, sum(depth <= max_depth for depth in shape.depths))
        assert cut.depth <= max_depth
        assert cut.n_leaves <= shape.n_leaves
        assert rank_paths(cut) <= rank_paths(shape)


def rank_paths(shape: TreeShape) -> set[tuple[int, ...]]:
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for node, children in enumerate(shape.children):
        paths |= {child: (*paths[node], rank) for rank, child in enumerate(children)}
    return set(paths.values())


def test_cutting_drops_the_last_nodes() -> None:
    assert SMALL.cut(4, 3).parents == (-1, 0, 1, 1)
    assert SMALL.cut(7, 2).parents == (-1, 0, 1, 1, 0, 4)
    assert SMALL.cut(0, -1).parents == (-1,), "the root stays"
    assert SMALL.cut(7, 3) == SMALL

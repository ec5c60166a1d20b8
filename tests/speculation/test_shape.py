"""Static tree shapes: their order and measures, and cuts."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.shape import TreeShape
from specrun.speculation.tree import TokenTree
from tests.trees import random_tree

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

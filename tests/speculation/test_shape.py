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
    assert SMALL.child_counts == (2, 2, 0, 1, 0, 1, 0)
    assert SMALL.ranks == (0, 0, 0, 1, 0, 1, 0)
    assert SMALL.levels == ((0,), (1, 5), (2, 3, 6), (4,))
    assert SMALL.widths == (1, 2, 3, 1)
    assert SMALL.expanded_widths == (1, 2, 1), "leaves are not expanded"


def test_facts_agree_with_those_of_a_token_tree(shape: TreeShape) -> None:
    tree = TokenTree.build(range(shape.n_nodes), shape.parents, [-float(i) for i in range(shape.n_nodes)])
    assert tuple(tree.parents.tolist()) == shape.parents
    assert tuple(tree.depths.tolist()) == shape.depths
    assert (tree.depth, tree.n_leaves) == (shape.depth, shape.n_leaves)
    for children in tree.children:
        assert [shape.ranks[child] for child in children] == list(range(len(children)))


def test_chances_are_products_by_rank_and_what_is_expected_is_their_sum() -> None:
    chances = [1, 0.5, 0.25, 0.125, 0.0625, 0.25, 0.125]
    assert SMALL.chances(ACCEPTANCE).tolist() == chances
    assert SMALL.expected(ACCEPTANCE) == pytest.approx(sum(chances))
    assert SMALL.expected([0.5]) == pytest.approx(1 + 0.5 + 0.25), "a rank beyond the vector has no chance"


@pytest.mark.parametrize("acceptance", [[1.5], [-0.1], [float("nan")], [[0.5]]])
def test_what_holds_no_chances_is_refused(acceptance: list[float]) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        SMALL.chances(acceptance)


def test_chains_and_branching_trees() -> None:
    assert TreeShape.chain(0).parents == (-1,)
    assert TreeShape.chain(3).parents == (-1, 0, 1, 2)
    tree = TreeShape.branching((4, 2, 2, 1))
    assert tree.widths == (1, 4, 8, 16, 16)
    assert set(tree.ranks) == {0, 1, 2, 3}
    assert tree.parents[:6] == (-1, 0, 1, 2, 3, 2)
    with pytest.raises(ValueError, match="at least one child"):
        TreeShape.branching((2, 0))


@pytest.mark.parametrize("parents", [(), (0,), (-1, -1), (-1, 1), (-1, 0, 5), (-1, 0, 0, 1), (-1, 0, 1, 0, 1)], ids=str)
def test_parents_out_of_order_are_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"root first|depth-first"):
        TreeShape(parents)


def test_equal_shapes_are_one_key() -> None:
    assert {TreeShape.chain(2): 1}[TreeShape((-1, 0, 1))] == 1


@pytest.mark.parametrize("acceptance", [None, [0.6, 0.2, 0.1], [0.1, 0.6, 0.0, 0.3]])
def test_cutting_keeps_whole_paths_of_ranks_within_the_bounds(shape: TreeShape, acceptance: list[float] | None) -> None:
    for max_nodes, max_depth in ((1, 5), (7, 100), (20, 3), (1000, 2), (5, 0)):
        cut = shape.cut(max_nodes, max_depth, acceptance)
        assert cut.n_nodes == min(max_nodes, sum(depth <= max_depth for depth in shape.depths))
        assert cut.depth <= max_depth
        assert cut.n_leaves <= shape.n_leaves
        assert rank_paths(cut) <= rank_paths(shape)


def rank_paths(shape: TreeShape) -> set[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in zip(shape.parents[1:], shape.ranks[1:], strict=True):
        paths.append((*paths[parent], rank))
    return set(paths)


def test_cutting_drops_the_least_likely_nodes_or_the_last() -> None:
    assert SMALL.cut(4, 3, ACCEPTANCE).parents == (-1, 0, 1, 0)
    assert SMALL.cut(4, 3).parents == (-1, 0, 1, 1)
    assert SMALL.cut(7, 2).parents == (-1, 0, 1, 1, 0, 4)
    assert SMALL.cut(0, -1).parents == (-1,), "the root stays"
    assert SMALL.cut(7, 3) is SMALL


def test_cutting_keeps_an_unlikely_sibling_in_front_of_a_likely_one() -> None:
    wide = TreeShape((-1, 0, 0, 0))
    assert wide.cut(3, 1, [0.0, 0.1, 0.9]).ranks == (0, 0, 1)

"""Trees that are drawn have the shapes of their papers, and branch within every budget and depth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrun.speculation.papers.growers import doubling, forked
from specrun.speculation.registry import find
from specrun.speculation.tree import MAX_LEAVES, TreeShape

DRAWN = ("specinfer", "rsd", "spectr")


@pytest.mark.parametrize(
    ("name", "size", "counts"),
    [
        ("specinfer", (), (1, 1, 3, 1, 1, 1, 1, 1)),
        ("specinfer", (15,), (1, 1, 2, 1, 1, 1, 1, 1)),
        ("specinfer", (33,), (1, 1, 5, 1, 1, 1, 1, 1)),
        ("rsd", (), (2, 2, 2)),
        ("rsd", (7,), (2, 2)),
        ("rsd", (11,), (2, 2, 1)),
        ("rsd", (22,), (3, 2, 2)),
        ("rsd", (31,), (2, 2, 2, 2)),
        ("multi-candidate-without-replacement", (29, 3), (4, 2, 2)),
        ("spectr", (), (2, 1, 1, 1, 1, 1, 1, 1)),
        ("spectr", (33,), (4, 1, 1, 1, 1, 1, 1, 1)),
        ("spectr", (65,), (8, 1, 1, 1, 1, 1, 1, 1)),
    ],
)
def test_a_plan_has_the_papers_shape(name: str, size: tuple[int, ...], counts: tuple[int, ...]) -> None:
    assert find(name).plan(*size).shape == TreeShape.branching(counts)


@pytest.mark.parametrize("size", [(), (8, 4), (16,), (16, 6), (24, 8), (32, 12), (48, 10), (64, 12), (128,), (512, 24)])
def test_no_two_methods_have_the_same_shape(size: tuple[int, ...]) -> None:
    shapes = [find(name).plan(*size).shape for name in DRAWN]
    assert len(set(shapes)) == 3
    assert all(shape is not None and shape.n_leaves > 1 for shape in shapes)


@given(st.integers(2, 2048), st.integers(1, 300), st.integers(0, 4))
def test_paths_fork_within_the_bounds_and_leave_no_room_for_another(budget: int, depth: int, stem: int) -> None:
    shape = forked(budget, depth, stem)
    assert_within(shape, budget, depth)
    assert shape.n_leaves == max(widths(shape))
    assert max(widths(shape)[: min(stem, depth - 1, budget - 3) + 1], default=1) == 1, "the stem is one path"
    after_the_stem = widths(shape).count(shape.n_leaves) if shape.n_leaves > 1 else shape.depth
    assert shape.n_nodes + after_the_stem > budget or shape.n_leaves == MAX_LEAVES


@pytest.mark.slow
@given(st.integers(2, 600), st.integers(1, 300))
def test_levels_branch_within_the_bounds_as_far_as_these_allow(budget: int, depth: int) -> None:
    shape = doubling(budget, depth)
    assert_within(shape, budget, depth)
    counts = [below // above for above, below in zip(widths(shape), widths(shape)[1:], strict=False)]
    assert shape == TreeShape.branching(counts)
    for level in range(len(counts)):
        wider = TreeShape.branching([*counts[:level], counts[level] + 1, *counts[level + 1 :]])
        assert wider.n_nodes > budget or wider.n_leaves > MAX_LEAVES, "no level has room for another child"


def widths(shape: TreeShape) -> list[int]:
    """Number of nodes of each level."""
    return [shape.depths.count(level) for level in range(shape.depth + 1)]


def assert_within(shape: TreeShape, budget: int, depth: int) -> None:
    assert shape.n_nodes <= budget
    assert 1 <= shape.depth <= depth
    assert shape.n_leaves <= MAX_LEAVES
    assert shape.n_leaves > 1 or budget == 2

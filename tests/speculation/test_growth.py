"""What a growing tree offers to passes that check one path, and scores that change."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specrun.speculation.drafter import DraftLimits
from specrun.speculation.growth import TreeGrowth
from specrun.speculation.tree import ROOT


def random_growth(seed: int, n_nodes: int) -> TreeGrowth:
    rng = np.random.default_rng(seed)
    growth = TreeGrowth([5])
    for token in range(1, n_nodes):
        parent = int(rng.integers(len(growth.tokens)))
        growth.add(token, parent, growth.scores[parent] + math.log(rng.uniform(0.05, 0.95)), math.nan)
    return growth


@pytest.mark.parametrize("seed", range(20))
def test_the_best_path_has_the_largest_sum_of_chances(seed: int) -> None:
    growth = random_growth(seed, 25)
    leaves = [node for node, children in enumerate(growth.children) if not children]

    def path_to(node: int) -> list[int]:
        return [ROOT] if node == ROOT else [*path_to(growth.parents[node]), node]

    def worth(path: list[int]) -> float:
        return sum(math.exp(growth.scores[node]) for node in path)

    best = max(map(path_to, leaves), key=worth)
    assert growth.best_path() == best
    chances = growth.chances(leaves=1)
    assert chances.tolist() == pytest.approx([math.exp(growth.scores[node]) for node in best])
    # It is what the limits leave of the tree.
    tree = growth.tree(DraftLimits(budget=25, depth=25, width=1, leaves=1))
    assert tree.tokens.tolist() == [growth.tokens[node] for node in best]


def test_of_several_paths_all_nodes_count() -> None:
    growth = random_growth(0, 12)
    chances = growth.chances(leaves=2)
    assert len(chances) == 12
    assert (np.diff(chances) <= 0).all()


def test_a_root_alone_is_a_path() -> None:
    assert TreeGrowth([5]).best_path() == [ROOT]
    assert TreeGrowth([5]).chances(1).tolist() == [1.0]


def test_children_of_the_worst_node_that_stays_are_not_asked_for() -> None:
    growth = TreeGrowth([5])
    likely = growth.add(6, ROOT, math.log(0.9), 0.9)
    unlikely = growth.add(7, ROOT, math.log(0.1), 0.1)
    both = [likely, unlikely]
    # Even a certain child would come behind the nodes that fill the tree.
    assert growth.open(both, DraftLimits(budget=2, depth=8, width=8, leaves=8)) == []
    assert growth.open(both, DraftLimits(budget=3, depth=8, width=8, leaves=8)) == [likely]
    assert growth.open(both, DraftLimits(budget=4, depth=8, width=8, leaves=8)) == both
    assert growth.open(both, DraftLimits(budget=4, depth=1, width=8, leaves=8)) == []


def test_what_is_below_a_node_changes_with_it() -> None:
    growth = TreeGrowth([1])
    child = growth.add(2, 0, -1.0, 0.5)
    other = growth.add(3, 0, -2.0, 0.2)
    grandchild = growth.add(4, child, -1.5, 0.6)
    growth.rescore(child, -0.25)
    assert [growth.scores[node] for node in (child, other, grandchild)] == [-0.25, -2.0, -0.75]

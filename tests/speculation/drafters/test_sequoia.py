"""The best tree equals that of a search over all trees; bounds on leaves; the choice by cost tables; acceptance of one
position equals sums over all outcomes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from specrun.sampling import Distribution
from specrun.speculation.drafters import sequoia
from specrun.speculation.drafters.sequoia import best_shape, choose, pass_ms
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.tree import TreeShape

LARGEST = 8
# A draft that is right seven times in ten, and ranks what it gets wrong well.
REAL = [0.7, *(0.28 * np.arange(1, 32) ** -1.3 / 3).tolist()]


@cache
def all_trees() -> tuple[TreeShape, ...]:
    return tuple(TreeShape.of_children(counts) for n in range(1, LARGEST + 1) for counts in child_counts(n, 1))


def child_counts(n_nodes: int, waiting: int) -> Iterator[list[int]]:
    """Child counts in depth-first order of `n_nodes` nodes, of which `waiting` have a parent already."""
    if n_nodes == 0 and waiting == 0:
        yield []
    if waiting:
        for count in range(n_nodes - waiting + 1):
            for rest in child_counts(n_nodes - 1, waiting - 1 + count):
                yield [count, *rest]


def vector(seed: int) -> list[float]:
    """A random acceptance vector, which falls."""
    p = np.random.default_rng(seed).dirichlet(np.full(6, 0.7))[:5]
    return np.sort(p)[::-1].tolist()


@pytest.mark.parametrize("seed", range(9))
def test_no_tree_is_worth_more(seed: int) -> None:
    p = vector(seed)
    worth = [(shape.n_nodes, shape.depth, shape.expected(p)) for shape in all_trees()]
    for n_nodes in range(1, LARGEST + 1):
        for depth in range(5):
            best = max(expected for n, d, expected in worth if n <= n_nodes and d <= depth)
            assert best_shape(p, n_nodes, depth).expected(p) == pytest.approx(best)


def test_there_are_as_many_trees_as_catalan_says() -> None:
    assert len(all_trees()) == 1 + 1 + 2 + 5 + 14 + 42 + 132 + 429


def test_nodes_without_a_chance_are_left_out() -> None:
    assert best_shape([0.5, 0.0, 0.0], 50, 3) == TreeShape.chain(3)
    assert best_shape([0.0], 50, 3) == best_shape([], 50, 3) == TreeShape.chain(0)
    assert best_shape([0.6, 0.3], 50, 1) == TreeShape((-1, 0, 0))


def test_no_node_has_more_children_than_there_are_ranks() -> None:
    assert max(best_shape([0.4, 0.3], 50, 5).child_counts) == 2


def test_a_rank_without_a_chance_is_kept_before_one_that_has_some() -> None:
    assert best_shape([0.5, 0.0, 0.4], 4, 1) == TreeShape((-1, 0, 0, 0))


@pytest.mark.parametrize("max_leaves", [1, 2, 3, 5])
def test_a_bound_on_the_leaves_costs_no_more_than_it_must(max_leaves: int) -> None:
    for p in (vector(0), vector(1), vector(3), [0.5, 0.2, 0.1, 0.1, 0.1]):
        for depth in (1, 3, 5):
            shape = best_shape(p, LARGEST, depth, max_leaves)
            allowed = [s for s in all_trees() if s.n_leaves <= max_leaves and s.depth <= depth]
            assert shape in allowed
            assert shape.expected(p) == pytest.approx(max(s.expected(p) for s in allowed), rel=1e-3)


@pytest.mark.parametrize("p", [REAL, [0.3] * 3, [0.2, 0.5, 0.3], [0.0, 0.9]], ids=["real", "ties", "rising", "second"])
@pytest.mark.parametrize("max_leaves", [1, 2, 5, 16, 100])
def test_a_bound_on_the_leaves_holds(p: list[float], max_leaves: int) -> None:
    shape = best_shape(p, 300, 12, max_leaves)
    assert shape.n_leaves <= max_leaves
    assert shape.n_nodes <= 300
    assert shape.depth <= 12


def test_one_leaf_is_the_chain_and_more_leaves_are_worth_more() -> None:
    assert best_shape(REAL, 300, 12, max_leaves=1) == TreeShape.chain(12)
    free = best_shape(REAL, 300, 12, max_leaves=300)
    worth = [best_shape(REAL, 300, 12, n).expected(REAL) for n in (1, 2, 5, 16, 64, free.n_leaves)]
    assert worth == sorted(worth)
    assert worth[-1] == pytest.approx(free.expected(REAL))
    half = best_shape(REAL, 300, 12, free.n_leaves // 2)
    assert half.n_nodes == 300
    assert half.expected(REAL) > 0.97 * free.expected(REAL), "half the leaves lose little"


def costs(target: dict[int, float], draft: dict[int, float]) -> CostModel:
    return CostModel(*(CostTable(PassTime(n, 64, ms) for n, ms in times.items()) for times in (target, draft)))


SIZES = (1, 2, 4, 8, 16, 32, 64)
FLAT = dict.fromkeys(SIZES, 100.0)
IN_PROPORTION = {n: 100.0 * n for n in SIZES}
CHEAP = {1: 1.0, 64: 1.0}
PER_NODE = {1: 4.0, 64: 256.0}


def test_a_flat_target_and_a_cheap_draft_take_the_largest_tree() -> None:
    assert choose(REAL, costs(FLAT, CHEAP), 64, 64, 16).n_nodes == 64
    assert choose(REAL, costs(FLAT, CHEAP), 64, 20, 16).n_nodes == 16, "the largest measured size within bounds"


def test_a_target_that_takes_twice_as_long_for_two_tokens_is_not_drafted_for() -> None:
    assert choose(REAL, costs(IN_PROPORTION, CHEAP), 64, 64, 16) == TreeShape.chain(0)


def test_with_one_candidate_or_one_leaf_it_is_a_chain() -> None:
    assert choose([0.9], costs(FLAT, CHEAP), 64, 64, 12) == TreeShape.chain(12)
    rates = [1e3 * TreeShape.chain(depth).expected(REAL) / (100 + depth) for depth in range(13)]
    fastest = TreeShape.chain(rates.index(max(rates)))
    assert choose(REAL, costs(FLAT, CHEAP), 64, 64, 12, max_leaves=1) == fastest


def test_a_cliff_in_the_target_is_not_climbed() -> None:
    cliff = {n: 100.0 if n <= 16 else 400.0 for n in SIZES}
    assert choose(REAL, costs(cliff, CHEAP), 64, 64, 16).n_nodes == 16


def test_a_dip_in_the_target_is_found() -> None:
    jagged = FLAT | {4: 200.0, 8: 200.0, 16: 90.0, 32: 300.0, 64: 300.0}
    assert choose(REAL, costs(jagged, CHEAP), 64, 64, 16).n_nodes == 16


def test_draft_passes_are_paid_for_by_the_nodes_that_have_children() -> None:
    model = costs(FLAT, PER_NODE)
    shape = TreeShape((-1, 0, 1, 1, 3, 0, 5))  # widths 1, 2, 3, 1, with children 1, 2, 1
    assert pass_ms(shape, model, 64) == pytest.approx(100 + 4 * 4.0)


def test_a_draft_that_pays_per_node_makes_narrower_trees_and_one_that_pays_per_pass_shallower_ones() -> None:
    p = [0.5, 0.3, 0.15]
    per_node = choose(p, costs(FLAT, PER_NODE), 64, 64, 16)
    per_pass = choose(p, costs(FLAT, dict.fromkeys((1, 64), 20.0)), 64, 64, 16)
    cheap = choose(p, costs(FLAT, CHEAP), 64, 64, 16)
    assert max(per_node.expanded_widths) < max(cheap.expanded_widths)
    assert per_pass.depth < cheap.depth


def test_a_draft_without_a_model_costs_nothing() -> None:
    model = CostModel(CostTable(PassTime(n, 64, ms) for n, ms in FLAT.items()))
    assert choose(REAL, model, 64, 64, 16).n_nodes == 64


def distribution(tokens: list[int], probabilities: list[float]) -> Distribution:
    return Distribution(np.array(tokens, np.int64), np.array(probabilities))


TARGET = distribution([1, 2, 5, 7], [0.5, 0.2, 0.2, 0.1])
DRAFT = distribution([1, 2, 3, 5], [0.3, 0.4, 0.2, 0.1])


def test_greedy_is_the_rank_of_the_targets_choice() -> None:
    draft = np.array([0.0, 3.0, 1.0, 3.0, 2.0], np.float32)
    for choice, rank in ((1, 0), (3, 1), (4, 2), (2, 3), (0, 4)):
        assert sequoia.greedy_vector(choice, draft).nonzero()[0].tolist() == [rank]
    assert sequoia.greedy_vector(5, draft).sum() == 0, "a token that the draft does not know"


def test_with_shared_noise_the_first_is_accepted_as_often_as_theory_says() -> None:
    # Both take token i with chance 1 / sum_j max(p_j / p_i, q_j / q_i) (arXiv 2408.07978).
    p, q = TARGET.dense(8), DRAFT.dense(8)
    both = [i for i in range(8) if p[i] > 0 and q[i] > 0]
    expected = sum(1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(8)) for i in both)
    found = sequoia.shared_noise_vector(TARGET, DRAFT, np.random.default_rng(0), 200_000)
    assert found[0] == pytest.approx(expected, abs=0.005)
    # What the draft never proposes is not accepted; everything else is, by its last candidate at the latest.
    assert found.sum() == pytest.approx(p[both].sum(), abs=0.005)


def test_a_draft_that_is_the_target_needs_one_candidate() -> None:
    found = sequoia.shared_noise_vector(TARGET, TARGET, np.random.default_rng(0), 50)
    assert found[0] == pytest.approx(1.0)
    assert found[1:].sum() == pytest.approx(0.0)


def test_a_draft_that_proposes_nothing_possible_gets_nothing() -> None:
    foreign = distribution([0, 6], [0.5, 0.5])
    assert sequoia.shared_noise_vector(TARGET, foreign, np.random.default_rng(0), 50).sum() == 0

"""The sizes of trees that share a pass."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specrun.speculation.planning.guide import node_ms, nodes_that_pay

# A pass over 5 tokens takes much longer than one over 4, and one over 16 hardly longer than one over 8.
JAGGED = np.interp(np.arange(33), [0, 1, 4, 8, 16, 32], [0, 24, 52, 86, 105, 150])


@pytest.mark.parametrize("seed", range(20))
def test_no_other_numbers_of_nodes_bring_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chances = [np.sort(rng.random(int(n)))[::-1] for n in rng.integers(0, 5, 4)]
    rate = float(rng.uniform(0.02, 0.12))

    def value(counts: tuple[int, ...]) -> float:
        tokens = sum(own[:n].sum() for own, n in zip(chances, counts, strict=True))
        return float(tokens) - rate * float(JAGGED[4 + sum(counts)])

    kept = nodes_that_pay(chances, JAGGED, 4, rate, range(33))
    best = max(itertools.product(*(range(len(own) + 1) for own in chances)), key=value)
    assert value(tuple(kept)) == pytest.approx(value(best))


def test_nodes_that_do_not_pay_alone_pay_together() -> None:
    own = np.array([0.7, 0.6, 0.5])
    alone = nodes_that_pay([own, *[np.empty(0)] * 3], JAGGED, 4, 0.1, range(33))
    assert alone == [0, 0, 0, 0]
    assert nodes_that_pay([own] * 4, JAGGED, 4, 0.1, range(33)) == [3, 3, 3, 3]


def test_the_price_of_a_node_is_that_of_the_best_larger_pass() -> None:
    assert node_ms(JAGGED, 4, 4) == pytest.approx((150 - 52) / 28)
    assert node_ms(JAGGED, 1, 1) == pytest.approx((JAGGED[17] - 24) / 16)
    assert node_ms(np.append(JAGGED[:17], np.full(16, 500.0)), 4, 4) == pytest.approx((105 - 52) / 12)
    assert node_ms(JAGGED, 32, 4) == 0.0
    assert node_ms(np.ones(33), 4, 4) == 0.0


def test_no_pass_is_larger_than_known() -> None:
    kept = nodes_that_pay([np.ones(20), np.ones(20)], JAGGED, 30, 0.01, range(33))
    assert sum(kept) == 2
    assert nodes_that_pay([np.ones(3)], JAGGED, 40, 0.01, range(33)) == [0]
    assert nodes_that_pay([np.empty(0)], JAGGED, 4, 0.01, range(33)) == [0]

"""Which experts are kept: those that tokens use often of late, and never more than the budget holds."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from specrun.llama.streaming.cached_experts import ExpertCache

N_LAYERS, N_EXPERTS, N_USED = 3, 6, 2
ONE = np.ones((N_LAYERS, N_EXPERTS), np.int64)


def uses(*experts: int) -> NDArray[np.int64]:
    return np.bincount(experts, minlength=N_EXPERTS)


def pairs(dropped: NDArray[np.intp]) -> list[tuple[int, ...]]:
    return [tuple(pair) for pair in dropped.tolist()]


def test_what_is_used_is_kept_and_read_once() -> None:
    cache = ExpertCache(ONE, N_USED, 10)
    assert cache.choose(1, uses(4, 0))[0].tolist() == [0, 4]
    missing, dropped = cache.choose(1, uses(4, 5))
    assert (missing.tolist(), pairs(dropped)) == ([5], [])
    assert cache.choose(2, uses(4, 0))[0].tolist() == [0, 4]
    assert (cache.n_bytes, cache.n_chosen, cache.n_found) == (5, 6, 1)


def test_the_expert_that_is_used_least_often_of_late_is_dropped() -> None:
    cache = ExpertCache(ONE, N_USED, 4)
    for _ in range(20):
        cache.choose(0, uses(0, 1))
    for _ in range(3):
        cache.choose(0, uses(0, 2))
    missing, dropped = cache.choose(0, uses(0, 3))
    assert not len(dropped)
    # 2 was used later than 1, but seldom.
    missing, dropped = cache.choose(0, uses(0, 4))
    assert (missing.tolist(), pairs(dropped)) == ([4], [(0, 3)])
    # What was used often long ago counts less and less.
    for _ in range(60):
        cache.choose(0, uses(2, 4))
    missing, dropped = cache.choose(0, uses(2, 5))
    assert pairs(dropped) == [(0, 1)]


def test_a_pass_over_many_tokens_counts_as_as_many_passes_over_one() -> None:
    one_by_one, together = ExpertCache(ONE, N_USED, 4), ExpertCache(ONE, N_USED, 4)
    for _ in range(10):
        one_by_one.choose(0, uses(0, 1))
    together.choose(0, uses(*[0, 1] * 10))
    assert np.allclose(one_by_one._rates, together._rates)


def test_a_layer_may_exceed_the_budget_until_another_one_is_used() -> None:
    cache = ExpertCache(ONE, N_USED, 3)
    cache.choose(0, uses(0, 1))
    missing, dropped = cache.choose(1, uses(0, 1, 2, 3, 4, 5))
    assert len(missing) == 6
    assert sorted(pairs(dropped)) == [(0, 0), (0, 1)]
    assert cache.n_bytes == 6
    missing, dropped = cache.choose(2, uses(3, 4))
    assert len(dropped) == 5
    assert {layer for layer, _ in pairs(dropped)} == {1}
    assert cache.n_bytes == 3


def test_the_budget_holds_whatever_the_sizes() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 50, (N_LAYERS, N_EXPERTS))
    budget = int(sizes.sum(axis=1).max())
    cache = ExpertCache(sizes, N_USED, budget)
    kept = np.zeros(sizes.shape, bool)
    for i, experts in enumerate(cache.fill()):
        kept[i, experts] = True
    for _ in range(500):
        layer = int(rng.integers(N_LAYERS))
        n_tokens = int(rng.integers(1, 4))
        counts = sum(uses(*rng.permutation(N_EXPERTS)[:N_USED]) for _ in range(n_tokens))
        missing, dropped = cache.choose(layer, np.asarray(counts))
        assert set(missing) == set(np.flatnonzero(np.asarray(counts) * ~kept[layer]))
        kept[layer, missing] = True
        for where in pairs(dropped):
            assert kept[where]
            assert sizes[where], "dropping it frees nothing"
            assert where[0] != layer or not np.asarray(counts)[where[1]]
            kept[where] = False
        assert (kept == cache.kept).all()
        assert cache.n_bytes == sizes[kept].sum() <= budget


@pytest.mark.parametrize("budget", [0, 1, 7, 17, 18, 100])
def test_it_is_filled_with_experts_of_all_layers_alike(budget: int) -> None:
    cache = ExpertCache(ONE, N_USED, budget)
    filled = [len(experts) for experts in cache.fill()]
    assert sum(filled) == cache.n_bytes == min(budget, ONE.size)
    assert max(filled) - min(filled) <= 1
    assert not any(len(experts) for experts in cache.fill())


def test_it_shrinks_down_to_a_layer() -> None:
    cache = ExpertCache(ONE, N_USED, 15)
    cache.fill()
    assert len(cache.shrink(4)) == 4
    assert (cache.budget, cache.n_bytes) == (11, 11)
    assert len(cache.shrink(100)) == 5
    assert (cache.budget, cache.n_bytes) == (N_EXPERTS, N_EXPERTS)
    assert len(cache.choose(0, uses(*range(N_EXPERTS)))[1]) <= N_EXPERTS
    assert cache.n_bytes == N_EXPERTS


def test_what_could_not_be_read_is_missing_again() -> None:
    cache = ExpertCache(ONE, N_USED, 15)
    missing, _ = cache.choose(1, uses(2, 3))
    cache.forget(1, missing)
    assert cache.n_bytes == 0
    assert cache.choose(1, uses(2, 3))[0].tolist() == [2, 3]

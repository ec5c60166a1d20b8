"""Positional acceptance of one position equals sums over all outcomes."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.sampling import Distribution
from specrun.speculation.planning import sequoia


def distribution(tokens: list[int], probabilities: list[float]) -> Distribution:
    return Distribution(np.array(tokens, np.int64), np.array(probabilities))


P = distribution([1, 2, 5, 7], [0.5, 0.2, 0.2, 0.1])
Q = distribution([1, 2, 3, 5], [0.3, 0.4, 0.2, 0.1])


def test_greedy_is_the_rank_of_the_targets_choice() -> None:
    draft = np.array([0.0, 3.0, 1.0, 3.0, 2.0], np.float32)
    for choice, rank in ((1, 0), (3, 1), (4, 2), (2, 3), (0, 4)):
        assert sequoia.greedy_vector(choice, draft).nonzero()[0].tolist() == [rank]
    assert sequoia.greedy_vector(5, draft).sum() == 0, "a token that the draft does not know"


def test_with_shared_noise_the_first_is_accepted_as_often_as_theory_says() -> None:
    # Both take token i with chance 1 / sum_j max(p_j / p_i, q_j / q_i) (arXiv 2408.07978).
    p, q = P.dense(8), Q.dense(8)
    both = [i for i in range(8) if p[i] > 0 and q[i] > 0]
    expected = sum(1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(8)) for i in both)
    found = sequoia.shared_noise_vector(P, Q, np.random.default_rng(0), 200_000)
    assert found[0] == pytest.approx(expected, abs=0.005)
    # What the draft never proposes is not accepted; everything else is, by its last candidate at the latest.
    assert found.sum() == pytest.approx(p[both].sum(), abs=0.005)


def test_a_draft_that_is_the_target_needs_one_candidate() -> None:
    found = sequoia.shared_noise_vector(P, P, np.random.default_rng(0), 50)
    assert found[0] == pytest.approx(1.0)
    assert found[1:].sum() == pytest.approx(0.0)


def test_a_draft_that_proposes_nothing_possible_gets_nothing() -> None:
    foreign = distribution([0, 6], [0.5, 0.5])
    assert sequoia.shared_noise_vector(P, foreign, np.random.default_rng(0), 50).sum() == 0

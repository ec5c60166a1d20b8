"""The lossless node rules commit tokens distributed as p, and accept as often as the papers say."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from specrun.speculation.papers.rules import k_seq, multi_step, sequoia
from specrun.verifying.findings import chi_square_p_value
from tests.speculation.papers.cases import FLAT, PAIRS, RULES, FixedUniform, P, Q, normalized, then_uniform
from tests.speculation.papers.theory import expected_acceptance

N_TIMES = 1500


@cache
def measured(rule: str, pair: str) -> tuple[np.ndarray, float]:
    """Counts of the committed tokens, and the share of the passes that accepted a candidate."""
    how, (p, q) = RULES[rule], PAIRS[pair]
    rng = np.random.default_rng(1)
    candidates = how.draft(q, N_TIMES, how.k, rng).tolist()
    tokens, accepted = zip(*(how.rule(p, q, draws, rng) for draws in candidates), strict=True)
    assert all(token in draws for token, was, draws in zip(tokens, accepted, candidates, strict=True) if was)
    return np.bincount(tokens, minlength=len(p)), float(np.mean(accepted))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rule", RULES)
def test_the_committed_token_is_distributed_as_p(rule: str, pair: str) -> None:
    p = PAIRS[pair][0]
    counts, _ = measured(rule, pair)
    assert not counts[p == 0].any()
    assert chi_square_p_value(counts, N_TIMES * p) > 1e-4


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rule", [rule for rule, how in RULES.items() if how.k <= 3])
def test_it_accepts_as_often_as_the_theory_says(rule: str, pair: str) -> None:
    how, (p, q) = RULES[rule], PAIRS[pair]
    expected = expected_acceptance(how, p, q)
    _, accepted = measured(rule, pair)
    assert abs(accepted - expected) <= 4 * np.sqrt(max(expected * (1 - expected), 1e-12) / N_TIMES) + 1e-3


def test_speculative_sampling_accepts_the_overlap() -> None:
    _, accepted = measured("speculative sampling", "ordinary")
    assert accepted == pytest.approx(float(np.minimum(P, Q).sum()), abs=0.03)
    assert expected_acceptance(RULES["speculative sampling"], P, Q) == pytest.approx(float(np.minimum(P, Q).sum()))


@pytest.mark.parametrize("rule", RULES)
def test_equal_distributions_are_always_accepted(rule: str) -> None:
    assert measured(rule, "equal")[1] == (1.0 if RULES[rule].k else 0.0)


def test_sequoia_accepts_in_the_end_when_every_token_is_drawn() -> None:
    assert all(measured("Sequoia, k=6", pair)[1] == 1.0 for pair in PAIRS)


def test_sequoia_tries_tokens_that_q_excludes() -> None:
    p, q = np.eye(6)[1], np.eye(6)[4]
    assert sequoia(p, q, [4, 1], np.random.default_rng(0)) == (1, True)


def test_k_seq_of_one_draw_is_speculative_sampling() -> None:
    for seed in range(200):
        draws = [int(np.random.default_rng(seed).choice(6, p=Q))]
        results = [rule(P, Q, draws, np.random.default_rng(seed)) for rule in (k_seq, multi_step)]
        assert results[0] == results[1]


def test_more_candidates_are_accepted_more_often() -> None:
    rates = [measured(rule, "ordinary")[1] for rule in ("speculative sampling", "k-SEQ, k=2", "multi-step, k=3")]
    assert rates == sorted(rates)
    # Without replacement no candidate is wasted on a token that was refused before.
    rates = [measured(rule, "one-hot p")[1] for rule in ("multi-step, k=3", "recursive rejection, k=3")]
    assert rates[1] > rates[0] + 0.03


@pytest.mark.parametrize("rule", [rule for rule, how in RULES.items() if how.k])
def test_the_least_uniform_number_accepts_nothing_impossible(rule: str) -> None:
    p, q = normalized(0, 1, 2), normalized(2, 1, 0)
    assert RULES[rule].rule(p, q, [0], FixedUniform(0.0)) == (2, False)


@pytest.mark.parametrize("rule", [rule for rule, how in RULES.items() if how.k])
def test_the_least_probability_of_the_draft_can_be_drawn(rule: str) -> None:
    p, q = normalized(1, 2), np.array([1.0, 5e-324])
    assert RULES[rule].rule(p, q, [1], np.random.default_rng(0)) == (1, True)


@pytest.mark.parametrize("rule", RULES)
def test_a_token_that_the_target_excludes_is_never_committed(rule: str) -> None:
    how = RULES[rule]
    rng = np.random.default_rng(2)
    for _ in range(300):
        n_vocab = int(rng.integers(2, 40))
        p, q = (random_distribution(n_vocab, rng) for _ in range(2))
        draws = how.draft(q, 1, min(how.k, n_vocab), rng)[0].tolist()
        token, _ = how.rule(p, q, draws, rng)
        assert p[token] > 0


def random_distribution(n_vocab: int, rng: np.random.Generator) -> np.ndarray:
    """Anything from flat to all but one-hot, often with a few tokens only."""
    logs = 10 ** rng.uniform(-1, 2.8) * rng.standard_normal(n_vocab)
    logs[rng.permutation(n_vocab)[: int(rng.integers(n_vocab))]] -= rng.choice([0.0, np.inf])
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def test_the_uniform_fallback_draws_every_other_token_alike() -> None:
    draws = then_uniform(np.eye(6)[2], 3000, 2, np.random.default_rng(3))
    assert (draws[:, 0] == 2).all()
    counts = np.bincount(draws[:, 1], minlength=6)
    assert chi_square_p_value(counts[FLAT * (np.arange(6) != 2) > 0], np.full(5, 600.0)) > 1e-4

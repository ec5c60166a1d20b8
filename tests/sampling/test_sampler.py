"""Samples follow the filtered distribution and depend on no noise but that of their position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specrun.errors import LlamaError, UsageError
from specrun.sampling import Sampler, SamplingParameters, filters
from specrun.sampling.adjustments import penalized
from specrun.verifying.findings import chi_square_p_value

NO_FILTER = SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
N_VOCAB = 400


def logits(spread: float = 2.0) -> np.ndarray:
    return (spread * np.random.default_rng(5).standard_normal(N_VOCAB)).astype(np.float32)


def textbook(row: np.ndarray, p: SamplingParameters) -> np.ndarray:
    """The distribution after llama.cpp's filters, by sorting everything."""
    order = np.argsort(-row, kind="stable")
    if p.top_k:
        order = order[: p.top_k]
    weights = np.exp(row[order].astype(np.float64) - row.max())
    share = np.cumsum(weights) / weights.sum()
    order = order[: int(np.searchsorted(share, p.top_p)) + 1] if p.top_p < 1 else order
    if p.min_p:
        order = order[np.exp(row[order].astype(np.float64) - row.max()) >= p.min_p]
    result = np.zeros(len(row))
    scaled = row[order].astype(np.float64) / p.temperature
    result[order] = np.exp(scaled - scaled.max())
    return result / result.sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters",
    [
        NO_FILTER,
        replace(NO_FILTER, temperature=0.7),
        replace(NO_FILTER, temperature=1.5),
        replace(NO_FILTER, top_k=40),
        replace(NO_FILTER, top_p=0.9),
        replace(NO_FILTER, min_p=0.05),
        replace(NO_FILTER, temperature=1.5, min_p=0.02),
        replace(NO_FILTER, top_k=50, top_p=0.8, min_p=0.03, temperature=0.8),
    ],
    ids=str,
)
def test_samples_follow_the_distribution(parameters: SamplingParameters) -> None:
    row, n = logits(), 20_000
    sampler = Sampler(parameters, N_VOCAB)
    counts = np.bincount([sampler.sample(row, position, ()) for position in range(n)], minlength=N_VOCAB)
    expected = n * textbook(row, parameters)
    assert counts[expected == 0].sum() == 0
    assert chi_square_p_value(counts, expected) > 1e-4


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5, 5.0])
@pytest.mark.parametrize("spread", [0.0, 0.5, 8.0])
def test_leaving_out_hopeless_tokens_changes_no_sample(temperature: float, spread: float) -> None:
    row = logits(spread)
    sampler = Sampler(replace(NO_FILTER, temperature=temperature), N_VOCAB)
    everything = np.arange(N_VOCAB)
    for position in range(300):
        scores = row / temperature + sampler._noise.gumbel(position, everything)
        assert sampler.sample(row, position, ()) == int(scores.argmax())


def test_greedy_takes_the_likeliest_and_of_equals_the_first() -> None:
    row = logits()
    row[[30, 90]] = 50
    assert Sampler(replace(NO_FILTER, temperature=0), N_VOCAB).sample(row, 3, ()) == 30


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("filtered", [True, False])
def test_the_first_candidate_is_the_sample(temperature: float, filtered: bool) -> None:
    parameters = (
        SamplingParameters(temperature=temperature) if filtered else replace(NO_FILTER, temperature=temperature)
    )
    sampler = Sampler(parameters, N_VOCAB)
    for position in range(100):
        candidates = sampler.candidates(logits()[None], [position], [()], 8)[0]
        assert candidates.tokens[0] == sampler.sample(logits(), position, ())
        assert len(candidates.tokens) == len(set(candidates.tokens.tolist())) <= 8
        assert (np.diff(candidates.scores) <= 0).all()


def test_penalties_are_llama_cpps() -> None:
    row = np.array([2.0, -2.0, 1.0, 0.5], np.float32)
    parameters = SamplingParameters(repeat_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5)
    result = penalized(row, [0, 1, 1, 99], parameters)
    np.testing.assert_allclose(result, [2.0 / 2 - 0.25 - 0.5, -2.0 * 2 - 0.25 - 1.0, 1.0, 0.5])
    np.testing.assert_array_equal(row, [2.0, -2.0, 1.0, 0.5])


@pytest.mark.parametrize("window", [1, 2, 5, 12, 64])
def test_penalties_look_at_the_last_tokens_only(window: int) -> None:
    row, text = logits(), list(range(20))
    sampler = Sampler(SamplingParameters(temperature=0, repeat_penalty=3.0, repeat_last_n=window), N_VOCAB)
    for recent in (text, sampler.recent(text)):
        assert np.flatnonzero(sampler.adjusted(row, recent) != row).tolist() == text[-window:]


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 1.5},
        {"repeat_penalty": 0.0},
        {"presence_penalty": float("inf")},
        {"repeat_last_n": -1},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_values_outside_their_range_are_refused_by_option_name(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="--"):
        SamplingParameters(**bad)


@pytest.mark.parametrize("n_tokens", [0, 1, 31, 32, 33, 100])
def test_penalties_see_a_short_text_whole(n_tokens: int) -> None:
    text = list(range(n_tokens))
    sampler = Sampler(SamplingParameters(repeat_penalty=1.1, repeat_last_n=32), N_VOCAB)
    assert sampler.recent(text) == text[max(0, n_tokens - 32) :]
    assert Sampler(SamplingParameters(), N_VOCAB).recent(text) == []


def test_a_draft_may_propose_what_only_its_own_top_p_and_min_p_cut() -> None:
    row = np.full(N_VOCAB, -20.0, np.float32)
    row[[3, 5, 8]] = [6.0, 3.0, 2.0]  # with these filters the sampler takes token 3 alone
    sampler = Sampler(SamplingParameters(temperature=0.8, top_k=3, top_p=0.9, min_p=0.2), N_VOCAB)
    for position in range(50):
        assert sampler.sample(row, position, ()) == 3
        candidates = sampler.candidates(row[None], [position], [()], 8)[0]
        assert candidates.tokens[0] == 3
        assert set(candidates.tokens.tolist()) == {3, 5, 8}


@pytest.mark.parametrize("n_vocab", [N_VOCAB, 10_000])
@pytest.mark.parametrize(
    "parameters",
    [
        SamplingParameters(temperature=0.0),
        SamplingParameters(temperature=0.8),
        NO_FILTER,
        replace(NO_FILTER, top_p=0.9),
        replace(NO_FILTER, top_k=20),
        replace(NO_FILTER, min_p=0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize(("bad", "n_bad"), [(np.nan, 1), (np.nan, None), (np.inf, 1)])
def test_logits_that_are_no_numbers_are_an_error(
    parameters: SamplingParameters, n_vocab: int, bad: float, n_bad: int | None
) -> None:
    row = np.random.default_rng(5).standard_normal(n_vocab).astype(np.float32)
    row[-1:] = bad
    row[:n_bad] = bad
    sampler = Sampler(parameters, n_vocab)
    for call in (
        lambda: sampler.sample(row, 7, []),
        lambda: sampler.candidates(row[None], [7], [[]], 4),
        lambda: sampler.distribution(row, []),
    ):
        with pytest.raises(LlamaError, match="no numbers"):
            call()


def ranked(sampler: Sampler, row: np.ndarray, position: int, count: int) -> tuple[list[int], np.ndarray]:
    """The candidates of one row where there is a top-k or no temperature, as the documentation says it."""
    p = sampler.parameters
    possible = [int(token) for token in np.argsort(-row, kind="stable") if row[token] > -np.inf]
    if p.temperature == 0:
        return possible[:count], row[possible[:count]].astype(np.float64)
    likeliest = possible[: p.top_k]
    passing = set(filters.cut(row, np.array(likeliest), p.top_p, p.min_p).tolist()) if likeliest else set()
    scores = row[likeliest].astype(np.float64) / p.temperature
    scores += sampler._noise.gumbel(position, np.array(likeliest, np.int64))
    best = max((s for s, token in zip(scores, likeliest, strict=True) if token in passing), default=0.0)
    scores = np.array(
        [s if t in passing else min(s - 1.0, best - 1e-3) for s, t in zip(scores.tolist(), likeliest, strict=True)]
    )
    order = np.argsort(-scores, kind="stable")[:count]
    return [likeliest[i] for i in order], scores[order]


@pytest.mark.parametrize("n_vocab", [50, N_VOCAB, 5000])
@pytest.mark.parametrize(
    "parameters",
    [
        SamplingParameters(temperature=0),
        SamplingParameters(temperature=0.8),
        SamplingParameters(temperature=0.8, top_k=30, top_p=1),
        SamplingParameters(temperature=1.2, top_k=70, min_p=0),
        replace(NO_FILTER, temperature=0.8),
    ],
    ids=str,
)
def test_the_candidates_of_several_rows_are_those_of_each(n_vocab: int, parameters: SamplingParameters) -> None:
    rng = np.random.default_rng(7)
    rows = (3 * rng.standard_normal((9, n_vocab))).astype(np.float32)
    rows[1] = np.round(rows[1])  # many equal logits
    rows[2:4, rng.permutation(n_vocab)[5:]] = -np.inf  # what a constraint, or another tokenizer, leaves
    rows[4] = -np.inf
    sampler = Sampler(parameters, n_vocab)
    positions = [3, 3, 4, 4, 4, 5, 6, 7, 8]
    found = sampler.candidates(rows, positions, [()] * 9, 16)
    for i, row in enumerate(rows):
        alone = sampler.candidates(row[None], [positions[i]], [()], 16)[0]
        np.testing.assert_array_equal(found[i].tokens, alone.tokens)
        np.testing.assert_array_equal(found[i].scores, alone.scores)
        for sharpness in (1.0, 1.5):
            n, shares = len(alone.tokens), found.log_shares(sharpness)[i]
            np.testing.assert_array_equal(shares[:n], alone.log_shares(sharpness))
            assert np.isneginf(shares[n:]).all()
        if parameters.temperature == 0 or parameters.top_k:
            tokens, scores = ranked(sampler, row, positions[i], 16)
            np.testing.assert_array_equal(alone.scores, scores)
            distinct = len(set(scores.tolist())) == len(scores)
            assert not distinct or alone.tokens.tolist() == tokens
    assert len(found[4].tokens) == 0
    assert found[2].tokens.tolist() != found[3].tokens.tolist()

"""A constrained sample equals that of a row in which all forbidden tokens are at minus infinity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from specrun.sampling import NO_TOKEN, Sampler, SamplingParameters
from specrun.verifying.findings import chi_square_p_value
from tests.sampling.test_sampler import textbook

NO_FILTER = SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
N_VOCAB = 5000


class Only:
    """Allows a set of tokens, whatever was written; notes what it was asked."""

    def __init__(self, allowed: np.ndarray) -> None:
        self._allowed = allowed
        self.n_asked = 0
        self.written: list[list[int]] = []

    def allowed(self, written: Sequence[int], tokens: np.ndarray) -> np.ndarray:
        self.n_asked += len(tokens)
        self.written.append(list(written))
        return self._allowed[tokens]


def rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits and which of them are allowed: from a handful to nearly all, with ties."""
    rng = np.random.default_rng(seed)
    logits = (rng.uniform(0.5, 8) * rng.standard_normal(N_VOCAB)).astype(np.float32)
    if seed % 3 == 0:
        logits = np.round(logits)
    share = rng.choice([0.0005, 0.01, 0.3, 0.95])
    return logits, rng.random(N_VOCAB) < share


PARAMETERS = [
    SamplingParameters(),
    SamplingParameters(temperature=0),
    SamplingParameters(temperature=1.5),
    NO_FILTER,
    replace(NO_FILTER, temperature=1.5, min_p=0.02),
    replace(NO_FILTER, top_k=40),
    replace(NO_FILTER, top_p=0.9),
    replace(NO_FILTER, top_p=0.999, min_p=0.001),
    replace(NO_FILTER, top_k=200, top_p=0.8),
    SamplingParameters(repeat_penalty=1.4, presence_penalty=0.3, repeat_last_n=16),
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_checking_few_tokens_gives_the_sample_of_checking_all(parameters: SamplingParameters) -> None:
    text = list(range(40))
    for seed in range(60):
        logits, allowed = rows(seed)
        parameters = replace(parameters, seed=seed)
        plain = Sampler(parameters, N_VOCAB)
        sampler = Sampler(parameters, N_VOCAB, Only(allowed), n_prompt=10)
        # Penalties are of the row before it is masked; minus infinity stays what it is.
        whole = np.where(allowed, logits, np.float32(-np.inf))
        expected = plain.sample(whole, 40, plain.recent(text)) if allowed.any() else NO_TOKEN
        assert sampler.sample(logits, 40, sampler.recent(text)) == expected


def test_with_the_usual_filters_few_tokens_are_checked() -> None:
    logits = (4 * np.random.default_rng(0).standard_normal(N_VOCAB)).astype(np.float32)
    constraint = Only(np.arange(N_VOCAB) % 2 == 0)
    sampler = Sampler(SamplingParameters(), N_VOCAB, constraint)
    for position in range(20):
        sampler.sample(logits, position, list(range(position)))
    assert constraint.n_asked <= 20 * 512


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [NO_FILTER, replace(NO_FILTER, top_k=50, top_p=0.8, temperature=0.8)], ids=str)
def test_samples_follow_the_distribution_of_the_allowed_tokens(parameters: SamplingParameters) -> None:
    n_vocab, n = 400, 20_000
    rng = np.random.default_rng(2)
    logits = (2 * rng.standard_normal(n_vocab)).astype(np.float32)
    allowed = rng.random(n_vocab) < 0.2
    sampler = Sampler(parameters, n_vocab, Only(allowed))
    samples = [sampler.sample(logits, position, ()) for position in range(n)]
    expected = np.zeros(n_vocab)
    expected[allowed] = n * textbook(logits[allowed], parameters)
    counts = np.bincount(samples, minlength=n_vocab)
    assert counts[~allowed].sum() == 0
    assert chi_square_p_value(counts, expected) > 1e-4


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_candidates_are_allowed_and_the_first_is_the_sample_where_they_are_common(
    parameters: SamplingParameters,
) -> None:
    n_first = 0
    for seed in range(40):
        logits, allowed = rows(seed)
        sampler = Sampler(replace(parameters, seed=seed), N_VOCAB, Only(allowed))
        candidates = sampler.candidates(logits[None], [0], [()], 16)[0]
        assert allowed[candidates.tokens].all()
        assert bool(len(candidates.tokens)) == bool(allowed.any())
        assert np.isfinite(candidates.scores).all()
        if len(candidates.tokens):
            n_first += int(candidates.tokens[0]) == sampler.sample(logits, 0, ())
    assert n_first >= 20


def test_it_is_asked_about_what_was_written_since_the_prompt() -> None:
    for parameters in (NO_FILTER, SamplingParameters(repeat_penalty=1.5, repeat_last_n=3)):
        constraint = Only(np.ones(N_VOCAB, np.bool_))
        sampler = Sampler(parameters, N_VOCAB, constraint, n_prompt=4)
        logits = rows(1)[0]
        for text in ([1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]):
            constraint.written.clear()
            sampler.sample(logits, len(text), sampler.recent(text))
            sampler.candidates(logits[None], [len(text) + 1], [[*sampler.recent(text), 11]], 4)
            assert constraint.written[0] == text[4:]
            assert constraint.written[-1] == [*text[4:], 11]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nothing_allowed_is_no_token_and_no_candidates(temperature: float) -> None:
    sampler = Sampler(SamplingParameters(temperature=temperature), N_VOCAB, Only(np.zeros(N_VOCAB, np.bool_)))
    assert sampler.sample(rows(0)[0], 0, ()) == NO_TOKEN
    assert len(sampler.candidates(rows(0)[0][None], [0], [()], 8)[0].tokens) == 0


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_tokens_that_a_draft_lacks_are_no_candidates(parameters: SamplingParameters) -> None:
    logits, allowed = rows(seed=1)
    logits[100:] = -np.inf
    allowed[:] = True
    allowed[:90] = False
    constraint = Only(allowed)
    sampler = Sampler(parameters, N_VOCAB, constraint)
    assert 0 < len(sampler.candidates(logits[None], [3], [[]], 16)[0].tokens) <= 10
    assert 90 <= sampler.sample(logits, 3, []) < 100
    allowed[:100] = False  # only what it lacks may follow
    constraint.n_asked = 0
    assert len(sampler.candidates(logits[None], [3], [[]], 16)[0].tokens) == 0
    assert constraint.n_asked < N_VOCAB / 2, "those that it lacks are looked at in vain"
    assert sampler.sample(logits, 3, []) == NO_TOKEN

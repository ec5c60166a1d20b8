"""A gap is never larger than what changed the token, and says how near a filter or another score was."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from specrun.sampling import Sampler, SamplingParameters
from specrun.verifying.findings import near_tie_gap

N_VOCAB = 60
PLAIN = SamplingParameters(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)


@pytest.mark.parametrize(
    "parameters",
    [
        replace(PLAIN, temperature=0.0),
        PLAIN,
        replace(PLAIN, top_k=4),
        replace(PLAIN, top_p=0.8),
        replace(PLAIN, min_p=0.3),
        replace(PLAIN, temperature=1.5, top_k=12, top_p=0.9, min_p=0.05),
        replace(PLAIN, top_k=4, repeat_penalty=1.6, presence_penalty=0.4, logit_bias=((9, 2.0),)),
        replace(PLAIN, temperature=0.0, repeat_penalty=0.5, frequency_penalty=0.3),
    ],
    ids=str,
)
def test_a_change_of_all_logits_explains_every_token_that_it_brings(parameters: SamplingParameters) -> None:
    rng, sampler = np.random.default_rng(0), Sampler(parameters, N_VOCAB)
    scale = parameters.temperature or 1.0
    recent = list(range(20, 50)) if parameters.has_penalties else []
    amplified = max(parameters.repeat_penalty, 1 / parameters.repeat_penalty)
    gaps = []
    for position in range(1500):
        row = (2 * rng.standard_normal(N_VOCAB)).astype(np.float32)
        change = 0.1
        moved = row + (change * rng.choice([-1.0, 1.0], N_VOCAB)).astype(np.float32)
        token, other = (sampler.sample(one, position, recent) for one in (row, moved))
        if token != other:
            gaps.append(near_tie_gap(sampler, row, position, recent, token, other))
            assert 0 <= gaps[-1] <= 2 * change * amplified / scale + 1e-5
    assert len(gaps) > 20


@pytest.mark.parametrize(
    ("filters", "distance"),
    [
        ({"top_k": 2}, 1.0),  # from the second logit
        ({"min_p": math.exp(-2.5)}, 0.5),  # from 2.5 below the first
    ],
)
def test_a_token_that_a_filter_cut_is_as_far_as_the_filter(filters: dict[str, float], distance: float) -> None:
    row = np.array([4.0, 2.0, 1.0, -9.0], np.float32) if "top_k" in filters else np.array([4.0, 1.0, 0.0], np.float32)
    sampler = Sampler(replace(PLAIN, **filters), len(row))
    cut = 2 if "top_k" in filters else 1
    likes_it = next(at for at in range(20_000) if sampler.scores(row, at, np.arange(len(row))).argmax() == cut)
    token = sampler.sample(row, likes_it, ())
    assert token != cut
    assert near_tie_gap(sampler, row, likes_it, (), token, cut) == pytest.approx(distance / 0.8, rel=1e-5)


def test_a_clear_choice_has_a_wide_gap() -> None:
    row = np.zeros(N_VOCAB, np.float32)
    row[7] = 12.0
    for parameters in (replace(PLAIN, temperature=0.0), replace(PLAIN, top_k=40, top_p=0.95, min_p=0.05)):
        sampler = Sampler(parameters, N_VOCAB)
        assert sampler.sample(row, 3, ()) == 7
        assert near_tie_gap(sampler, row, 3, (), 7, 8) > 5

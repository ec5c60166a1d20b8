"""Biases change the logits of their tokens and of no others, before every filter."""

from __future__ import annotations

import numpy as np

from specrun.sampling import Sampler, SamplingParameters
from specrun.sampling.adjustments import Biases

ROW = np.array([1.0, 2.0, 3.0, 4.0], np.float32)


def test_biases_of_one_token_add_up_and_the_row_stays_as_it_is() -> None:
    found = Biases([(3, -1.0), (0, 2.5), (3, -0.5)], 4).added(ROW)
    assert found.tolist() == [3.5, 2.0, 3.0, 2.5]
    assert ROW.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_row_may_lack_tokens() -> None:
    assert Biases([(1, 1.0), (7, 9.0)], 8).added(ROW).tolist() == [1.0, 3.0, 3.0, 4.0]


def test_they_come_before_penalties_filters_and_the_constraint_of_one_likeliest() -> None:
    greedy = SamplingParameters(temperature=0, logit_bias=((1, 3.0),))
    assert Sampler(greedy, 4).sample(ROW, 0, ()) == 1
    assert Sampler(greedy, 4).candidates(ROW[None], [0], [()], 2).tokens.tolist() == [[1, 3]]
    # 5 / 2 is less than 4, so the penalty acts on the biased logit; 2 / 2 + 3 would be more.
    penalized = SamplingParameters(temperature=0, logit_bias=((1, 3.0),), repeat_penalty=2.0)
    assert Sampler(penalized, 4).sample(ROW, 1, (1,)) == 3


def test_a_sampled_token_that_is_forbidden_never_comes() -> None:
    sampling = SamplingParameters(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, logit_bias=((3, -1e6),))
    sampler = Sampler(sampling, 4)
    found = {sampler.sample(ROW, position, ()) for position in range(200)}
    assert found == {0, 1, 2}
    assert sampler.distribution(ROW, ()).tokens.tolist() == [0, 1, 2]

"""Log-probabilities are the logarithm of the softmax of the whole row."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.errors import LlamaError
from specrun.sampling.sampler import logprob

ROW = (3 * np.random.default_rng(1).standard_normal(5000)).astype(np.float32)


def test_they_are_those_of_the_softmax() -> None:
    row = ROW.astype(np.float64)
    expected = np.log(np.exp(row) / np.exp(row).sum())
    found = logprob(ROW, 17, 3)
    assert found.token == 17
    assert found.logprob == pytest.approx(expected[17])
    likeliest = np.argsort(-ROW)[:3]
    assert found.top == tuple((int(token), pytest.approx(expected[token])) for token in likeliest)


def test_none_of_the_likeliest_may_be_wanted() -> None:
    assert logprob(ROW, 17, 0).top == ()


def test_large_logits_do_not_overflow() -> None:
    assert logprob(np.array([1e5, 0.0], np.float32), 0, 1).logprob == 0.0


def test_rows_that_are_no_numbers_are_an_error() -> None:
    with pytest.raises(LlamaError, match="no numbers"):
        logprob(np.array([0.0, np.nan], np.float32), 0, 1)

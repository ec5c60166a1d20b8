"""Trees for Sequoia's own rule come from the acceptance vector of sample and match; this is what that costs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.decoding.tree_shapes import PositionalMeter
from specrun.llama.draft_tokens import rows_along
from specrun.sampling import Distribution, Sampler, SamplingParameters
from specrun.speculation.drafters.sequoia import best_shape
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.papers.rules import residual
from specrun.speculation.planning.calibration import MAX_RANK
from tests.engines import code_prompts, engine

N_DRAWS = 8


@pytest.fixture(scope="module")
def pair() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(16, 8)) as e:
        yield e


def own_vector(p: Distribution, q: Distribution, rng: np.random.Generator) -> np.ndarray:
    """float64[MAX_RANK] of one position: the chance that Sequoia's rule accepts the k-th draw, over its draws."""
    tokens = np.union1d(p.tokens, q.tokens)
    target, draft = (d.dense(int(tokens[-1]) + 1)[tokens] for d in (p, q))
    with np.errstate(divide="ignore"):
        keys = np.log(draft) + rng.gumbel(size=(N_DRAWS, len(tokens)))
    chances = np.zeros(MAX_RANK)
    for order in np.argsort(-keys, axis=1):
        left, rest, reach = target, draft.copy(), 1.0
        for rank, token in enumerate(order[: min(len(q.tokens), MAX_RANK)]):
            now = rest / rest.sum()
            accepted = min(left[token] / now[token], 1.0)
            chances[rank] += reach * accepted / N_DRAWS
            reach *= 1 - accepted
            left = residual(left, now)
            rest[token] = 0.0
            if not rest.any():
                break
    return chances


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.5])
def test_a_tree_by_the_shared_vector_is_hardly_worse_by_sequoias_own_rule(temperature: float, pair: Engine) -> None:
    sampling = SamplingParameters(temperature=temperature)
    sampler, rng = Sampler(sampling, pair.target.n_vocab), np.random.default_rng(0)
    meter, own, n = PositionalMeter(pair, sampling), np.zeros(MAX_RANK), 0
    assert pair.draft is not None
    for text in code_prompts(pair, 8, 100):
        pair.reset()
        known = [sampler.distribution(row, ()) for row in rows_along(pair.target.context, text, 0)]
        pair.reset()
        for p, row in zip(known, pair.draft.rows_along(text, 0), strict=True):
            own += own_vector(p, sampler.distribution(row, ()), rng)
            n += 1
        pair.reset()
        meter.add(text, known=known)
    by_rule = (own / n).tolist()
    assert own[0] / n > meter.vector()[0], "the rule knows both distributions, so it accepts the first draw more often"
    for budget in (8, 16, 32, 64, 128, 256):
        best, found = (best_shape(vector, budget, 24).expected(by_rule) for vector in (by_rule, meter.vector()))
        assert 0.97 * best < found <= best + 1e-9

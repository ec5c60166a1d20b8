"""The head that comes with the package: the same text as without, and trees that are worth their name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import MERGED
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.engines import Written, code_prompts, engine, first_difference, write

CHAIN_PLAN, TREE = CHAIN.plan(depth=6), SPECEXEC.plan(32, 6, 8)


@pytest.fixture(scope="module")
def running() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.HEAD, TREE) as e:
        yield e


def written(e: Engine, plan: Plan, temperature: float) -> list[Written]:
    results = []
    for seed, prompt in enumerate(code_prompts(e, 3, 40)):
        e.reset()
        results.append(write(e, prompt, SamplingParameters(temperature=temperature, seed=seed), plan, 64))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_the_targets_own_and_trees_commit_most(running: Engine, temperature: float) -> None:
    plain = written(running, OFF.plan(), temperature)
    passes = []
    for plan in (OFF.plan(), CHAIN_PLAN, MERGED.plan(16, 6), TREE):
        results = written(running, plan, temperature)
        for result, reference in zip(results, plain, strict=True):
            assert first_difference(result, reference) is None
        passes.append(sum(result.n_passes for result in results))
    off, chain, _, tree = passes
    assert off > 1.5 * chain
    assert chain > tree

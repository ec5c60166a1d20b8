"""Log-probabilities of a completion: one for each token, and the same with every plan."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specrun.catalog import embedded
from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan

BIASED = ((40, 2.0), (41, -1e6), (50, -3.0))


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    one_thread = LlamaSettings(threads=1)
    draft_settings = LlamaSettings(threads=1, flash_attn="on")
    plans = (SPECEXEC.plan(24, 6),)
    options = RunOptions(
        embedded.TARGET, embedded.DRAFT, plans, ctx_size=512, settings=one_thread, draft_settings=draft_settings
    )
    with Model(options) as model:
        yield model


def written(model: Model, plan: Plan, n_top: int | None, stops: tuple[str, ...] = ()) -> Completion:
    prompt = model.prompt_tokens("def read_config(path):")
    sampling = SamplingParameters(temperature=0.8, seed=3, logit_bias=BIASED)
    return model.complete(Request(prompt, sampling, 60, stops, logprobs=n_top), FixedPlan(plan)).run()


@pytest.mark.slow
@pytest.mark.parametrize("plan", [CHAIN.plan(depth=4), SPECEXEC.plan(24, 6)], ids=str)
def test_they_are_the_same_with_and_without_speculation(model: Model, plan: Plan) -> None:
    plain, drafted = written(model, OFF.plan(), 4), written(model, plan, 4)
    assert drafted.statistics.passes < plain.statistics.passes
    assert drafted.token_ids == plain.token_ids
    assert drafted.logprobs == plain.logprobs
    assert [one.token for one in plain.logprobs] == plain.token_ids
    assert all(len(one.top) == 4 for one in plain.logprobs)


@pytest.mark.slow
def test_they_are_the_models_own_without_biases(model: Model) -> None:
    completion = written(model, OFF.plan(), 512)
    assert 41 not in completion.token_ids, "it is forbidden"
    assert all(dict(one.top)[one.token] == one.logprob for one in completion.logprobs if one.token in dict(one.top))
    assert any(dict(one.top).get(41, -100.0) > -15 for one in completion.logprobs), "and has its own probability"


def test_none_are_computed_unless_asked_for(model: Model) -> None:
    assert written(model, OFF.plan(), None).logprobs == []


def test_they_end_with_the_token_that_completes_a_stop_text(model: Model) -> None:
    whole = written(model, OFF.plan(), 0)
    stop = whole.text[30:33]
    for plan in (OFF.plan(), SPECEXEC.plan(24, 6)):
        stopped = written(model, plan, 0, (stop,))
        assert stopped.finish_reason == "stop"
        assert len(stopped.logprobs) == len(stopped.token_ids) < 60
        assert stopped.logprobs == whole.logprobs[: len(stopped.logprobs)]


@pytest.mark.slow
def test_drafted_tokens_are_counted(model: Model) -> None:
    statistics = written(model, SPECEXEC.plan(24, 6), None).statistics
    assert statistics.drafted > statistics.drafted_accepted > 0
    assert statistics.drafted_accepted == statistics.completion_tokens - statistics.passes
    assert written(model, OFF.plan(), None).statistics.drafted == 0

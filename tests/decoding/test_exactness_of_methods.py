"""Every method through the real engine on the embedded pair: the text, or its distribution, is that of the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Method, Plan
from specrun.speculation.registry import METHODS, find
from specrun.speculation.tree import TokenTree, TreeShape
from specrun.verifying.findings import chi_square_p_value
from tests.engines import Written, chooser, code_prompts, write

MATCHING = [method for method in METHODS.values() if not method.samples and method.name != "off"]
SAMPLING = [method for method in METHODS.values() if method.samples and method.lossless]
ONE_THREAD = LlamaSettings(threads=1)


@pytest.fixture(scope="module")
def pair() -> Iterator[Model]:
    options = RunOptions(
        embedded.TARGET, embedded.DRAFT, (SPECEXEC.plan(32, 16),), ctx_size=1024, settings=ONE_THREAD,
        draft_settings=ONE_THREAD,
    )  # fmt: skip
    with Model(options) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def plainly(pair: Model) -> Callable[[int, SamplingParameters], Written]:
    """What plain decoding writes after one of the prompts, written once for all methods."""

    @cache
    def written(i: int, sampling: SamplingParameters) -> Written:
        pair.engine.reset()
        return write(pair.engine, code_prompts(pair.engine, i + 1, 40)[i], sampling, OFF.plan(), 80)

    return written


def plan_of(method: Method, pair: Model, temperature: float) -> Plan:
    return pair.plans.shaped([method.plan(depth=5) if method.is_chain else method.plan(20, 6)], temperature)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "n_prompts"), [(0.0, 1), (0.8, 2)])
@pytest.mark.parametrize("method", MATCHING, ids=lambda method: method.name)
def test_every_method_that_samples_and_matches_is_the_same_bit_for_bit(
    method: Method, temperature: float, n_prompts: int, pair: Model, plainly: Callable[..., Written]
) -> None:
    engine, plan = pair.engine, plan_of(method, pair, temperature)
    saved = 0
    for i, prompt in enumerate(code_prompts(engine, n_prompts, 40)):
        sampling = SamplingParameters(temperature=temperature, seed=i)
        plain = plainly(i, sampling)
        engine.reset()
        found = write(engine, prompt, sampling, plan, 80)
        assert (found.tokens, found.rows, found.finish) == (plain.tokens, plain.rows, plain.finish)
        saved += plain.n_passes - found.n_passes
    assert saved > 0, "nothing was accepted"


@pytest.mark.slow
@pytest.mark.parametrize("method", SAMPLING, ids=lambda method: method.name)
def test_every_rule_writes_plain_decodings_text_when_greedy(
    method: Method, pair: Model, plainly: Callable[..., Written]
) -> None:
    engine, plan = pair.engine, plan_of(method, pair, 0.0)
    prompt = code_prompts(engine, 1, 40)[0]
    greedy = SamplingParameters(temperature=0, seed=0)
    plain = plainly(0, greedy)
    engine.reset()
    found = write(engine, prompt, greedy, plan, 80)
    assert (found.tokens, found.rows) == (plain.tokens, plain.rows)
    assert found.n_passes < plain.n_passes


@pytest.mark.slow
def test_texts_of_a_rule_that_draws_follow_the_targets_distribution(pair: Model) -> None:
    """The first two of three tokens, over seeds: with three to write, the first pass drafts two levels.

    One rule for all: the path from logits to a committed token is theirs together, and the distribution of each rule is
    tested with toy models (tests/speculation/papers/test_walk.py).
    """
    engine = pair.engine
    sampling = SamplingParameters(temperature=1.2, top_k=4, top_p=1.0, min_p=0.0)
    prompt = code_prompts(engine, 1, 40, seed=3)[0]
    expected = two_tokens(pair, prompt, sampling)
    plan = find("sequoia").plan().shaped(TreeShape.branching((3, 2)))
    counts = dict.fromkeys(expected, 0)
    lengths, n_seeds = 0, 500
    for seed in range(n_seeds):
        steps = list(write_alone(Generation(engine, Request(prompt, replace(sampling, seed=seed), 3), FixedPlan(plan))))
        written = engine.target.tokens[len(prompt) :]
        counts[tuple(written[:2] if tuple(written[:1]) not in expected else written[:1])] += 1
        lengths += len(steps[0].accepted.tokens)
    observed = np.array([counts[pair] for pair in expected])
    assert chi_square_p_value(observed, n_seeds * np.array(list(expected.values()))) > 1e-4
    assert lengths > 1.2 * n_seeds, "hardly anything was accepted"


def two_tokens(pair: Model, prompt: list[int], sampling: SamplingParameters) -> dict[tuple[int, ...], float]:
    """The target's distribution of the next two tokens, or of one that ends the text."""
    target = pair.engine.target
    sampler = Sampler(sampling, target.n_vocab)

    def next_token(text: list[int]) -> dict[int, float]:
        target.set_prompt(text)
        found = sampler.distribution(target.score(TokenTree.root_only(text[-1]))[0], ())
        return dict(zip(found.tokens.tolist(), found.probabilities.tolist(), strict=True))

    expected: dict[tuple[int, ...], float] = {}
    for a, p in next_token(prompt).items():
        if target.context.model.is_end_of_generation(a):
            expected[(a,)] = p
        else:
            expected |= {(a, b): p * q for b, q in next_token([*prompt, a]).items()}
    return expected


@pytest.mark.slow
def test_a_method_that_draws_repeats_its_text_for_a_seed_and_changes_it_for_another(pair: Model) -> None:
    plan = METHODS["sequoia"].plan().shaped(TreeShape.branching((3, 2, 1)))
    prompt = code_prompts(pair.engine, 1, 40)[0]
    texts = []
    for seed in (1, 1, 2):
        pair.engine.reset()
        texts.append(write(pair.engine, prompt, SamplingParameters(temperature=1.0, seed=seed), plan, 40).tokens)
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.slow
def test_typical_acceptance_is_lossy_and_says_so(pair: Model) -> None:
    method = METHODS["typical"]
    assert not method.lossless
    assert "lossy" in str(method.plan())
    plan = plan_of(method, pair, 0.8)
    lengths = {"typical": 0, "specexec": 0}
    for seed, prompt in enumerate(code_prompts(pair.engine, 2, 40)):
        for name in lengths:
            pair.engine.reset()
            found = write(pair.engine, prompt, SamplingParameters(seed=seed), replace(plan, method=find(name)), 60)
            lengths[name] += found.n_passes
    assert lengths["typical"] < lengths["specexec"], "it takes more of the drafts than the target would"


def test_a_plan_of_every_method_can_be_made() -> None:
    for method in METHODS.values():
        assert chooser(method.plan()).plan().method is method
        assert method.plan(budget=8, depth=3).budget <= 8 or method.name == "off"

"""The product's promise: with speculation the text is the one without it, token by token and bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.llama.context import ALL_SEQUENCES
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.guide import PassRecord
from specrun.verifying.findings import chi_square_p_value
from tests.engines import Written, chooser, code_prompts, engine, first_difference, next_token, write, written_by
from tests.models import random_gemma3, random_llama

GREEDY = SamplingParameters(temperature=0)
SAMPLED = SamplingParameters(temperature=0.8, seed=1)


def assert_same(plan: Plan, results: list[Written], plain: list[Written]) -> None:
    for i, (result, reference) in enumerate(zip(results, plain, strict=True)):
        assert first_difference(result, reference) is None, f"{plan}, prompt {i}"
    assert sum(r.n_passes for r in results) < sum(r.n_passes for r in plain), "nothing was accepted"


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "n_prompts"), [(GREEDY, 2), (SAMPLED, 6)], ids=["greedy", "T=0.8"])
def test_every_prompt_is_answered_the_same_bit_for_bit(sampling: SamplingParameters, n_prompts: int) -> None:
    # scripts/check_exactness.py does the same with a hundred prompts.
    plain = written_by(OFF.plan(), sampling, n_prompts, max_tokens=64)
    for plan in (CHAIN.plan(depth=4), SPECEXEC.plan(24, 8), ADAPTIVE.plan(64, 12, 8)):
        assert_same(plan, written_by(plan, sampling, n_prompts, max_tokens=64), plain)


@pytest.mark.slow
def test_the_text_is_the_same_where_the_draft_uses_sequences_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = SPECEXEC.plan(16, 12, 16)
    freed = []
    with engine(embedded.TARGET, embedded.DRAFT, plan) as e:
        assert e.draft
        remove = e.draft.context.remove

        def noted(seq: int, start: int) -> None:
            if seq != ALL_SEQUENCES:
                freed.append(seq)
            remove(seq, start)

        monkeypatch.setattr(e.draft.context, "remove", noted)
        for prompt in code_prompts(e, 2, 40):
            plain = write(e, prompt, SAMPLED, OFF.plan(), 60)
            e.reset()
            assert_same(plan, [write(e, prompt, SAMPLED, plan, 60)], [plain])
            e.reset()
    assert freed, "every branch had a sequence of its own"


class Changing:
    """Another plan for every pass, as `auto` may decide, in an order that a seed gives."""

    def __init__(self, plans: Sequence[Plan], seed: int) -> None:
        self._plans = plans
        self._rng = np.random.default_rng(seed)
        self._adaptive = chooser(ADAPTIVE.plan(32, 8, 8))
        self.guide = self._adaptive.guide
        self._now = plans[0]
        self.needs_draft = True

    def read_prompt(self, n_tokens: int, seconds: float, n_unread: int) -> None:
        self._adaptive.read_prompt(n_tokens, seconds, n_unread)

    def plan(self, n_texts: int = 1) -> Plan:
        assert n_texts == 1
        return self._now

    def record(self, step: PassRecord) -> None:
        self._adaptive.record(step)
        self._now = self._plans[int(self._rng.integers(len(self._plans)))]


@pytest.mark.slow
def test_the_plan_may_change_at_every_pass() -> None:
    largest = SPECEXEC.plan(32, 8)
    plans = [OFF.plan(), CHAIN.plan(depth=3), SPECEXEC.plan(16, 6), ADAPTIVE.plan(32, 8, 8), largest]
    with engine(embedded.TARGET, embedded.DRAFT, largest) as e:
        for i, prompt in enumerate(code_prompts(e, 6, 40)):
            plain = write(e, prompt, replace(SAMPLED, seed=i), OFF.plan(), 100)
            e.reset()
            steps = write_alone(Generation(e, Request(prompt, replace(SAMPLED, seed=i), 100), Changing(plans, i)))
            assert [token for step in steps for token in step.tokens] == plain.tokens
            e.reset()


@pytest.mark.slow
@pytest.mark.parametrize("n_prompt_tokens", [230, 480])
def test_long_contexts_are_the_same_bit_for_bit(n_prompt_tokens: int) -> None:
    # llama.cpp's attention changes its kernel at 512 cells, for one token but not for several. It rounds the number
    # of cells up to a multiple of 256, so the first texts reach 512 cells, and the others 768, while they are written.
    plain = written_by(OFF.plan(), SAMPLED, 1, n_prompt_tokens, max_tokens=64)
    for plan in (CHAIN.plan(depth=8), SPECEXEC.plan(100, 10)):
        assert_same(plan, written_by(plan, SAMPLED, 1, n_prompt_tokens, max_tokens=64), plain)


FILTERS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
PENALTIES = {"repeat_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.1, "repeat_last_n": 32}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("temperature", "options"),
    [
        (1.5, FILTERS | {"top_k": 40}),
        (0.7, FILTERS | {"top_p": 0.9}),
        (1.5, FILTERS | {"min_p": 0.05}),
        (1.5, FILTERS),
        (0.7, PENALTIES),
        (0.0, PENALTIES),  # filters change nothing here
    ],
    ids=["top-k", "top-p", "min-p", "none", "penalties", "greedy with penalties"],
)
def test_every_sampler_is_the_same(temperature: float, options: dict[str, float]) -> None:
    sampling = SamplingParameters(temperature=temperature, **options)
    plain = written_by(OFF.plan(), sampling, 2, max_tokens=64)
    for plan in (CHAIN.plan(depth=3), SPECEXEC.plan(20, 6)):
        assert_same(plan, written_by(plan, sampling, 2, max_tokens=64), plain)


@pytest.mark.slow
def test_a_draft_with_random_weights_changes_nothing(tmp_path: Path) -> None:
    draft = random_llama(tmp_path / "random.gguf")
    plain = written_by(OFF.plan(), SAMPLED, 2, max_tokens=64, draft=draft)
    for plan in (CHAIN.plan(depth=4), SPECEXEC.plan(24, 6)):
        results = written_by(plan, SAMPLED, 2, max_tokens=64, draft=draft)
        assert [r.tokens for r in results] == [r.tokens for r in plain]
        assert [r.rows for r in results] == [r.rows for r in plain]


@pytest.mark.slow
@pytest.mark.parametrize(("target_extra", "draft_extra"), [(0, 96), (96, 0)])
def test_vocabularies_padded_to_different_sizes_are_the_same(
    tmp_path: Path, target_extra: int, draft_extra: int
) -> None:
    # Flat sampling from random weights writes padding tokens too, which the other model does not know.
    hot = SamplingParameters(temperature=5.0, top_k=0, top_p=1.0, min_p=0.0)
    target = random_llama(tmp_path / "target.gguf", vocab_extra=target_extra, n_layer=3)
    draft = random_llama(tmp_path / "draft.gguf", vocab_extra=draft_extra)
    plain = written_by(OFF.plan(), hot, 2, max_tokens=64, target=target, draft=draft)
    if target_extra:
        assert any(token >= 2048 for result in plain for token in result.tokens)
    for plan in (CHAIN.plan(depth=4), SPECEXEC.plan(24, 6)):
        results = written_by(plan, hot, 2, max_tokens=64, target=target, draft=draft)
        assert [r.tokens for r in results] == [r.tokens for r in plain]
        assert [r.rows for r in results] == [r.rows for r in plain]


@pytest.mark.slow
def test_a_draft_that_is_the_target_is_always_right() -> None:
    plain = written_by(OFF.plan(), SAMPLED, 3, max_tokens=64)
    for plan in (CHAIN.plan(depth=7), SPECEXEC.plan(32, 7)):
        results = written_by(plan, SAMPLED, 3, max_tokens=64, draft=embedded.TARGET)
        assert [r.tokens for r in results] == [r.tokens for r in plain]
        for result in results:
            if plan.method is CHAIN and result.finish == "length":
                assert result.n_passes == 8


@pytest.mark.parametrize(
    "plan", [SPECEXEC.plan(1, 8), SPECEXEC.plan(2, 1), CHAIN.plan(depth=1), CHAIN.plan(depth=0)], ids=str
)
def test_the_smallest_plans_work(plan: Plan) -> None:
    results = written_by(plan, SAMPLED, 1, max_tokens=32)
    assert [r.tokens for r in results] == [r.tokens for r in written_by(OFF.plan(), SAMPLED, 1, max_tokens=32)]


@pytest.mark.slow
def test_more_leaves_than_sequence_ids_are_cut_to_the_likeliest() -> None:
    # Two levels of up to 16 children each: far more than 256 leaves.
    plan = SPECEXEC.plan(1000, 3)
    hot = replace(SAMPLED, temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
    with engine(embedded.TARGET, embedded.DRAFT, plan) as e:
        prompt = code_prompts(e, 1, 40)[0]
        trees = [step.tree for step in write_alone(Generation(e, Request(prompt, hot, 32), FixedPlan(plan)))]
        speculated = list(e.target.tokens)
    assert max(tree.n_leaves for tree in trees) == 256
    with engine(embedded.TARGET, None, OFF.plan()) as e:
        list(write_alone(Generation(e, Request(prompt, hot, 32), FixedPlan(OFF.plan()))))
        assert e.target.tokens == speculated


@pytest.mark.slow
def test_sliding_windows_are_the_same_far_beyond_the_window(tmp_path: Path) -> None:
    target, draft = (random_gemma3(tmp_path / f"{seed}.gguf", window=24, seed=seed) for seed in (0, 1))
    plain = written_by(OFF.plan(), SAMPLED, 2, target=target, draft=target)
    for plan in (CHAIN.plan(depth=4), SPECEXEC.plan(24, 6)):
        assert_same(plan, written_by(plan, SAMPLED, 2, target=target, draft=target), plain)
    # A draft with other random weights: nearly every drafted node is dropped again.
    results = written_by(SPECEXEC.plan(24, 6), SAMPLED, 2, target=target, draft=draft)
    assert [r.rows for r in results] == [r.rows for r in plain]


@pytest.mark.slow
def test_sampled_tokens_follow_the_targets_distribution() -> None:
    """The joint distribution of two tokens written with a tree, over seeds, is the target's own."""
    plan = SPECEXEC.plan(12, 2)
    sampling = SamplingParameters(temperature=1.2, top_k=4, top_p=1.0, min_p=0.0)
    n_seeds = 600
    with engine(embedded.TARGET, embedded.DRAFT, plan) as e:
        prompt = code_prompts(e, 1, 40, seed=3)[0]
        first = next_token(e.target, prompt, sampling)
        expected: dict[tuple[int, ...], float] = {}
        for a, p in first.items():
            if e.target.context.model.is_end_of_generation(a):
                expected[(a,)] = p
                continue
            second = next_token(e.target, [*prompt, a], sampling)
            expected |= {(a, b): p * q for b, q in second.items()}
        counts = dict.fromkeys(expected, 0)
        for seed in range(n_seeds):
            list(write_alone(Generation(e, Request(prompt, replace(sampling, seed=seed), 2), FixedPlan(plan))))
            counts[tuple(e.target.tokens[len(prompt) :])] += 1
    observed = np.array([counts[pair] for pair in expected])
    assert chi_square_p_value(observed, n_seeds * np.array(list(expected.values()))) > 1e-4


def test_a_sampled_token_depends_on_row_position_seed_and_recent_tokens_only() -> None:
    # All tests above rest on this.
    row = np.random.default_rng(0).standard_normal(2048).astype(np.float32)
    one, other = Sampler(SAMPLED, 2048), Sampler(SAMPLED, 2048)
    forward = [one.sample(row, position, ()) for position in range(50)]
    backward = [other.sample(row, position, ()) for position in reversed(range(50))]
    assert forward == backward[::-1]

"""Texts that are written together are those that the engine writes one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.make_head.text_writer import write_together
from specrun.catalog import embedded
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.long_run import Run
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.engines import code_prompts, engine
from tests.hybrids import KINDS, random_recurrent

# The first leaves llama.cpp's snapshots of recurrent states where it has them, the second a checkpoint.
DEEPEST = (CHAIN.plan(depth=8), CHAIN.plan(depth=40))


@pytest.mark.slow
def test_each_text_is_what_the_target_writes_alone() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(16, 8)) as pair:
        prompts = [prompt[: 30 + i] for i, prompt in enumerate(code_prompts(pair, 4, 40))]
        together = write_together(pair.target, prompts, [0.0, 0.8], 8, 24, Run())
        assert pair.target.tokens == []
        for texts in together.values():
            for text, prompt in zip(texts, prompts, strict=True):
                pair.reset()
                request = Request(prompt, text.sampling, 24, ignore_eos=True)
                alone = [
                    token
                    for one in write_alone(Generation(pair, request, FixedPlan(OFF.plan())))
                    for token in one.tokens
                ]
                # Attention sums over the cells of all texts, so the last bits differ, and rarely a near-tie.
                assert text.prompt == prompt
                assert text.written[:12] == alone[:12]
                assert len(text.distributions) == len(text.written) == 24
        assert together[0.0][0].sampling == SamplingParameters(temperature=0.0, seed=0)
        assert len({text.sampling.seed for text in together[0.8]}) == 4


@pytest.mark.parametrize(("least", "n_tokens"), [(8, 8), (40, 24)])
def test_when_the_time_is_over_texts_end_at_the_least_length(least: int, n_tokens: int) -> None:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(16, 8)) as pair:
        texts = write_together(pair.target, code_prompts(pair, 2, 20), [0.0], least, 24, Run().stage(-1))[0.0]
        assert [len(text.written) for text in texts] == [n_tokens] * 2


def test_where_the_context_is_too_small_texts_are_written_in_groups() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(8, 4), ctx_size=128) as pair:
        prompts = [prompt[:20] for prompt in code_prompts(pair, 5, 40)]
        at_once = write_together(pair.target, prompts, [0.0, 0.8], 4, 24, Run())
        in_groups = write_together(pair.target, prompts, [0.0, 0.8], 4, 24, Run(), most_groups=8)
        assert len(at_once[0.0][0].written) < 24
        for temperature in (0.0, 0.8):
            assert [text.prompt for text in in_groups[temperature]] == prompts
            assert {len(text.written) for text in in_groups[temperature]} == {24}
            for short, long in zip(at_once[temperature], in_groups[temperature], strict=False):
                assert short.sampling == long.sampling
                assert len(short.distributions) == len(short.written)
                assert short.written[:4] == long.written[:4]


def test_only_as_many_prompts_are_taken_as_fit_the_context() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(8, 4), ctx_size=64) as pair:
        cells = pair.target.context.config.n_ctx
        prompts = [prompt[:20] for prompt in code_prompts(pair, 8, 40)]
        by_temperature = write_together(pair.target, prompts, [0.0, 0.8], 10, 24, Run())
        texts = by_temperature[0.0]
        assert 1 < len(texts) < 8
        assert len(texts) * (20 + 2 * len(texts[0].written)) <= cells
        long = write_together(pair.target, [prompts[0] * 2], [0.0, 0.8], 100, 200, Run())
        assert 40 + 2 * len(long[0.0][0].written) <= cells


@pytest.mark.parametrize("deepest", DEEPEST, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_states_of_texts_are_kept_apart(tmp_path: Path, kind: str, deepest: Plan) -> None:
    target = random_recurrent(tmp_path / "target.gguf", kind)
    with engine(target, target, deepest) as e:
        prompts = [prompt[: 20 + i] for i, prompt in enumerate(code_prompts(e, 3, 40))]
        together = write_together(e.target, prompts, [0.0, 0.8], 8, 16, Run(), most_groups=8)
        for texts in together.values():
            assert [text.prompt for text in texts] == prompts
            for text in texts:
                e.reset()
                request = Request(text.prompt, text.sampling, 16, ignore_eos=True)
                alone = [
                    token for one in write_alone(Generation(e, request, FixedPlan(OFF.plan()))) for token in one.tokens
                ]
                assert text.written == alone

"""The decode loop: how a generation ends, what it counts, and that it can be left at any step."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.decoding.completion import Completion
from specrun.decoding.engine import Engine
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.errors import PromptError
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.engines import code_prompts, engine, write
from tests.models import scripted_llama

PLAN = SPECEXEC.plan(16, 6)
SAMPLING = SamplingParameters(temperature=0.8, seed=5)


@pytest.fixture(scope="module")
def demo() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.DRAFT, PLAN, ctx_size=256) as e:
        yield e


@pytest.fixture(scope="module")
def prompt(demo: Engine) -> list[int]:
    return code_prompts(demo, 1, 40)[0]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 31])
@pytest.mark.parametrize("plan", [OFF.plan(), CHAIN.plan(depth=4), PLAN], ids=str)
def test_max_tokens_is_exact(demo: Engine, prompt: list[int], plan: Plan, max_tokens: int) -> None:
    written = write(demo, prompt, SAMPLING, plan, max_tokens)
    assert len(written.tokens) == max_tokens
    assert written.finish == "length"
    assert written.statistics.completion_tokens == max_tokens


@pytest.mark.slow
@pytest.mark.parametrize("plan", [OFF.plan(), CHAIN.plan(depth=4), PLAN], ids=str)
def test_the_context_fills_to_its_last_token(demo: Engine, prompt: list[int], plan: Plan) -> None:
    tokens: list[int] = []
    finish = None
    # A seed whose text is longer than the context.
    for step in write_alone(
        Generation(
            demo,
            Request(prompt, SamplingParameters(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=2)),
            FixedPlan(plan),
        )
    ):
        tokens += step.tokens
        finish = step.finish
    assert finish == "context"
    assert len(prompt) + len(tokens) == demo.ctx_size


def test_an_end_of_generation_token_ends_it_and_is_left_out(tmp_path: Path) -> None:
    script = [b"a", b"b", b"c", b"d"]
    path = scripted_llama(tmp_path / "script.gguf", script)
    for plan in (OFF.plan(), CHAIN.plan(depth=8), SPECEXEC.plan(16, 8)):
        with engine(path, path, plan, ctx_size=128) as e:
            model = e.target.context.model
            written = write(e, model.tokenize("x = 1\n", add_special=False), SAMPLING, plan, 100)
            assert [model.token_bytes(token) for token in written.tokens] == script
            assert written.finish == "stop"
            statistics = written.statistics
            assert statistics.tokens_per_pass == (len(script) + 1) / statistics.passes, (
                "the token that ends it is counted"
            )
            assert model.is_end_of_generation(e.target.tokens[-1])


def test_what_the_draft_has_to_read_is_told_where_the_target_has_the_prompt(demo: Engine, prompt: list[int]) -> None:
    class Noting:
        guide = None
        told = (0, 0)

        def __init__(self, plan: Plan) -> None:
            self.fixed = FixedPlan(plan)
            self.plan, self.record, self.needs_draft = self.fixed.plan, self.fixed.record, plan.drafts

        def read_prompt(self, n_tokens: int, seconds: float, n_unread: int) -> None:
            assert seconds >= 0
            self.told = n_tokens, n_unread

    demo.reset()
    told = []
    for plan in (OFF.plan(), OFF.plan(), PLAN, OFF.plan()):
        noting = Noting(plan)
        list(write_alone(Generation(demo, Request(prompt, SAMPLING, 1), noting)))
        told.append(noting.told)
    n = len(prompt)
    assert [n_unread for _, n_unread in told] == [n, n, n, 1]
    assert told[0][0] >= n - 1 > told[1][0]


def test_prompts_that_cannot_work_are_refused_before_any_work(demo: Engine) -> None:
    with pytest.raises(PromptError, match="empty"):
        list(write_alone(Generation(demo, Request([], SAMPLING), FixedPlan(PLAN))))
    with pytest.raises(PromptError, match="256"):
        list(write_alone(Generation(demo, Request([1] * 256, SAMPLING), FixedPlan(PLAN))))


@pytest.mark.slow
def test_the_longest_prompt_leaves_room_for_one_token(demo: Engine) -> None:
    written = write(demo, [5] * 255, SAMPLING, PLAN, 100)
    assert len(written.tokens) <= 1
    assert written.finish in ("context", "stop")


def test_interrupting_ends_it_after_the_pass(demo: Engine, prompt: list[int]) -> None:
    finishes: list[str | None] = []
    for step in write_alone(
        Generation(demo, Request(prompt, SAMPLING, 100), FixedPlan(PLAN), interrupted=lambda: len(finishes) == 2)
    ):
        finishes.append(step.finish)
    assert finishes == [None, None, "interrupted"]


@pytest.mark.slow
def test_interrupting_the_prompt_ends_it_before_the_first_pass(demo: Engine, prompt: list[int]) -> None:
    whole = write(demo, prompt, SAMPLING, PLAN, 20)
    demo.reset()
    assert (
        list(write_alone(Generation(demo, Request(prompt, SAMPLING, 20), FixedPlan(PLAN), interrupted=lambda: True)))
        == []
    )
    assert write(demo, prompt, SAMPLING, PLAN, 20) == whole


@pytest.mark.slow
def test_leaving_in_the_middle_spoils_nothing(demo: Engine, prompt: list[int]) -> None:
    whole = write(demo, prompt, SAMPLING, PLAN, 60)
    for left_after in (1, 2, 5):
        for count, _ in enumerate(
            write_alone(Generation(demo, Request(prompt, SAMPLING, 60), FixedPlan(PLAN))), start=1
        ):
            if count == left_after:
                break
        assert write(demo, prompt, SAMPLING, PLAN, 60) == whole


@pytest.mark.slow
def test_a_continued_text_decodes_only_what_is_new(demo: Engine, prompt: list[int]) -> None:
    for plan in (OFF.plan(), CHAIN.plan(depth=4), PLAN):
        write(demo, prompt, SAMPLING, plan, 20)
        text = list(demo.target.tokens)
        written = write(demo, [*text, 7, 8, 9], SAMPLING, plan, 1)
        # The last token is decoded by the first pass; pending ones of a tree are decoded again.
        n_new = written.statistics.prompt_tokens_decoded
        assert 3 <= n_new <= 3 + PLAN.depth


@pytest.mark.slow
def test_statistics_add_up(demo: Engine, prompt: list[int]) -> None:
    generation = Generation(demo, Request(prompt, SAMPLING, 80), FixedPlan(PLAN))
    steps = list(write_alone(generation))
    s = generation.statistics
    assert s.passes == len(steps)
    assert s.completion_tokens == sum(len(step.tokens) for step in steps)
    assert s.prompt_tokens == len(prompt) > s.prompt_tokens_decoded
    assert s.target_seconds > 0
    assert s.draft_seconds > 0
    assert s.target_seconds + s.draft_seconds + s.other_seconds == pytest.approx(s.seconds)
    assert sum(s.matched) == sum(len(step.accepted.path) - 1 for step in steps)
    assert all(matched <= offered for matched, offered in zip(s.matched, s.offered, strict=True))
    assert s.offered[0] == sum(len(step.tree) > 1 for step in steps)


@pytest.mark.slow
def test_statistics_belong_to_their_own_generation(demo: Engine, prompt: list[int]) -> None:
    first = write(demo, prompt, SAMPLING, PLAN, 20)
    write(demo, prompt, SAMPLING, PLAN, 5)
    assert first.statistics.completion_tokens == 20


def test_an_answer_that_is_kept_holds_no_sampler(demo: Engine, prompt: list[int]) -> None:
    completion = Completion(demo, Request(prompt, SAMPLING, 12), FixedPlan(PLAN))
    generation = completion.generation()
    for done in write_alone(generation):
        completion.add(done)
    sampler = weakref.ref(generation.sampler)
    del generation, done
    gc.collect()
    assert completion.last_drafted
    assert len(completion.last_drafted.tree) > 1
    assert sampler() is None

"""Hybrid and recurrent targets, and drafts: the text with speculation is the text without, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.llama.recurrent_draft import RecurrentDraft
from specrun.llama.rollback import PROMPT_TAIL
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE, MERGED
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.registry import METHODS, find
from specrun.speculation.tree import TreeShape
from tests.engines import Written, code_prompts, engine, first_difference, write, written_by
from tests.hybrids import KINDS, WITH_SNAPSHOTS, noisy, random_recurrent
from tests.models import random_llama

GREEDY = SamplingParameters(temperature=0)
SAMPLED = SamplingParameters(temperature=0.8, seed=1)
# Of the first, llama.cpp keeps snapshots where it can; the second is deeper than it may keep any.
CHAINS = (CHAIN.plan(depth=4), CHAIN.plan(depth=33))


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target of one kind, and a draft that is like it but not the same."""
    folder = tmp_path_factory.mktemp(request.param)
    target = random_recurrent(folder / "target.gguf", request.param)
    return target, noisy(folder / "draft.gguf", target)


def assert_same(results: list[Written], plain: list[Written], plan: Plan) -> None:
    for i, (result, reference) in enumerate(zip(results, plain, strict=True)):
        assert first_difference(result, reference) is None, f"{plan}, prompt {i}"


def n_passes(results: list[Written]) -> int:
    return sum(result.n_passes for result in results)


@pytest.mark.slow
def test_chains_write_the_same_text_bit_for_bit(pair: tuple[Path, Path]) -> None:
    target, draft = pair
    plain = written_by(OFF.plan(), SAMPLED, 2, target=target, draft=draft, max_tokens=64)
    for plan in CHAINS:
        results = written_by(plan, SAMPLED, 2, target=target, draft=draft, max_tokens=64)
        assert_same(results, plain, plan)
        assert 1.2 * n_passes(results) < n_passes(plain), "hardly anything was accepted"
        lengths = results[0].statistics.accepted
        assert sum(lengths[1 : plan.depth]), "no pass was accepted partly"


@pytest.mark.slow
def test_of_every_tree_the_best_path_is_checked(pair: tuple[Path, Path]) -> None:
    target, draft = pair
    plain = written_by(OFF.plan(), SAMPLED, 2, target=target, draft=draft, max_tokens=64)
    for plan in (SPECEXEC.plan(24, 6), ADAPTIVE.plan(64, 12, 8), MERGED.plan(32, 31)):
        results = written_by(plan, SAMPLED, 2, target=target, draft=draft, max_tokens=64)
        assert_same(results, plain, plan)
        assert n_passes(results) < n_passes(plain)


# Methods that need a head are in `test_exactness_of_heads`.
WITH_A_DRAFT = [name for name, method in METHODS.items() if method.drafter and method.lossless and not method.head]


@pytest.fixture(scope="module")
def lfm2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Written]]:
    """A hybrid, a draft that is like it, and what it writes by itself."""
    folder = tmp_path_factory.mktemp("lfm2")
    target = random_recurrent(folder / "target.gguf", "lfm2")
    draft = noisy(folder / "draft.gguf", target)
    return target, draft, written_by(OFF.plan(), GREEDY, 1, target=target, draft=draft, max_tokens=40)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_A_DRAFT)
def test_every_method_works(lfm2: tuple[Path, Path, list[Written]], name: str) -> None:
    method, (target, draft, plain) = find(name), lfm2
    plan = method.plan(8, 4)
    if method.wants_shape:
        plan = plan.shaped(TreeShape.chain(4))
    with engine(target, draft, plan) as e:
        prompt = code_prompts(e, 1, 40)[0]
        assert_same([write(e, prompt, replace(GREEDY, seed=0), plan, 40)], plain, plan)
        if method.samples:  # their texts differ from plain decoding's, and their trees are drawn at random
            e.reset()
            trees = [
                one.tree
                for one in write_alone(Generation(e, Request(prompt, SAMPLED, 40), FixedPlan(plan.on_one_path())))
            ]
            assert {tree.n_leaves for tree in trees} == {1}
            assert max(len(tree) for tree in trees) > 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sources_draft_where_text_repeats_itself(tmp_path: Path, kind: str) -> None:
    target = random_recurrent(tmp_path / "target.gguf", kind)
    plan = DRAFTLESS.plan(16)
    with engine(target, None, plan) as e:
        words = code_prompts(e, 1, 12)[0] * 6
        plain = write(e, words, GREEDY, OFF.plan(), 100)
        e.reset()
        assert first_difference(write(e, words, GREEDY, plan, 100), plain) is None


@pytest.mark.slow
@pytest.mark.parametrize("n_prompt_tokens", [1, 600])
def test_short_and_long_prompts(pair: tuple[Path, Path], n_prompt_tokens: int) -> None:
    # A prompt of 600 tokens is read in two passes. Attention changes its kernel at 512 cells.
    target, draft = pair
    options = {"target": target, "draft": draft, "max_tokens": 32}
    plain = written_by(OFF.plan(), SAMPLED, 1, n_prompt_tokens, **options)  # type: ignore[arg-type]
    for plan in CHAINS:
        assert_same(written_by(plan, SAMPLED, 1, n_prompt_tokens, **options), plain, plan)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("plan", CHAINS, ids=str)
def test_a_full_context_ends_the_text(pair: tuple[Path, Path], plan: Plan) -> None:
    with engine(*pair, plan, ctx_size=96) as e:
        prompt = code_prompts(e, 1, 40)[0]
        plain = write(e, prompt, SAMPLED, OFF.plan(), 1000)
        e.reset()
        written = write(e, prompt, SAMPLED, plan, 1000)
    assert first_difference(written, plain) is None
    assert (written.finish, len(written.tokens)) == ("context", 56)


@pytest.mark.slow
@pytest.mark.parametrize("plan", CHAINS, ids=str)
def test_any_number_of_tokens(pair: tuple[Path, Path], plan: Plan) -> None:
    with engine(*pair, plan) as e:
        prompt = code_prompts(e, 1, 40)[0]
        plain = write(e, prompt, SAMPLED, OFF.plan(), 24)
        for max_tokens in range(1, 25, 4):
            written = write(e, prompt, SAMPLED, plan, max_tokens)
            assert (written.tokens, written.rows) == (plain.tokens[:max_tokens], plain.rows[:max_tokens])


@pytest.mark.slow
@pytest.mark.parametrize("plan", CHAINS, ids=str)
def test_turns_of_a_chat_go_on_from_the_cache(pair: tuple[Path, Path], plan: Plan) -> None:
    """Answers, one that is interrupted, another answer to the same message, and one whose end is cut off."""

    def talk(e: Engine, plan: Plan) -> tuple[list[list[int]], list[int]]:
        text = code_prompts(e, 1, 40)[0]
        answers, n_read = [], []
        for turn in range(5):
            sampling = replace(SAMPLED, seed=turn)
            if turn == 2:
                _interrupted(e, Request(text, replace(sampling, seed=99), 40), plan)
            written = write(e, text, sampling, plan, 30)
            answers.append(written.tokens)
            n_read.append(written.statistics.prompt_tokens_decoded)
            end = 20 if turn == 3 else 30  # a stop text
            text = [*text, *written.tokens[:end], *code_prompts(e, 1, 24, seed=turn)[0]]
        return answers, n_read

    with engine(*pair, plan) as e:
        plain, plain_read = talk(e, OFF.plan())
        e.reset()
        answers, n_read = talk(e, plan)
    assert answers == plain
    # The last token of an answer and all but one after it; with chains, those of the answer that wait for a pass, too.
    # After an interrupted or cut answer, the last tokens of the prompt before it and what follows them.
    assert plain_read == [39, 24, PROMPT_TAIL, 24, PROMPT_TAIL + 20 + 24]
    waiting = 4 + plan.depth + 1
    assert all(n <= plain + waiting for n, plain in zip(n_read, plain_read, strict=True))


def _interrupted(e: Engine, request: Request, plan: Plan) -> None:
    """A text that ends after three passes, as Ctrl-C ends it."""
    generation = Generation(e, request, FixedPlan(plan) if plan.drafts else FixedPlan(OFF.plan()))
    for i, _ in enumerate(write_alone(generation)):
        if i == 2:
            break


@pytest.fixture(scope="module")
def embedded_text() -> list[Written]:
    return written_by(OFF.plan(), SAMPLED, 1, max_tokens=60)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [CHAIN.plan(depth=4), SPECEXEC.plan(16, 6), ADAPTIVE.plan(32, 8, 8)], ids=str)
def test_a_recurrent_draft_drafts_for_any_target(
    pair: tuple[Path, Path], plan: Plan, embedded_text: list[Written]
) -> None:
    # It knows nothing of what the embedded target writes: nearly everything is taken back.
    (result,) = written_by(plan, SAMPLED, 1, max_tokens=60, draft=pair[1])
    (plain,) = embedded_text
    assert (result.tokens, result.rows) == (plain.tokens, plain.rows)
    assert result.statistics.offered, "nothing was drafted"
    if not plan.method.is_adaptive:  # which soon sees that this draft does not pay
        assert result.statistics.offered[0] > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_draft_that_is_the_target_is_always_right(tmp_path: Path, kind: str) -> None:
    model = random_recurrent(tmp_path / "model.gguf", kind)
    plan = CHAIN.plan(depth=7)
    for result in written_by(plan, SAMPLED, 2, target=model, draft=model, max_tokens=64):
        assert result.n_passes == 8


def test_a_recurrent_draft_reads_again_only_what_was_accepted(tmp_path: Path) -> None:
    target = random_recurrent(tmp_path / "target.gguf", "mamba")
    draft = noisy(tmp_path / "draft.gguf", target)
    with engine(target, draft, CHAIN.plan(depth=4)) as e:
        assert isinstance(e.draft, RecurrentDraft)
        context = e.draft.context
        sizes: list[int] = []
        decode = context.decode
        context.decode = lambda batch: (sizes.append(len(batch)), decode(batch))[1]  # type: ignore[method-assign, func-returns-value]
        write(e, code_prompts(e, 1, 40)[0], GREEDY, CHAIN.plan(depth=4), 60)
    # The prompt; then a pass over root and accepted tokens, and one for each further drafted token.
    assert sizes[0] == 40
    assert max(sizes[1:]) <= 6


@pytest.mark.slow
def test_a_dense_draft_drafts_for_a_hybrid(tmp_path: Path) -> None:
    target, draft = random_recurrent(tmp_path / "target.gguf", "qwen35"), random_llama(tmp_path / "draft.gguf")
    plain = written_by(OFF.plan(), SAMPLED, 2, target=target, draft=draft, max_tokens=60)
    for plan in (CHAIN.plan(depth=4), ADAPTIVE.plan(32, 8, 8)):
        results = written_by(plan, SAMPLED, 2, target=target, draft=draft, max_tokens=60)
        assert_same(results, plain, plan)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WITH_SNAPSHOTS)
def test_snapshots_and_checkpoint_write_the_same_in_as_many_passes(tmp_path: Path, kind: str) -> None:
    """And as many as the same chain takes on a model that has attention alone."""
    target = random_recurrent(tmp_path / "target.gguf", kind)
    draft = noisy(tmp_path / "draft.gguf", target)
    found = []
    for largest in CHAINS:
        with engine(target, draft, largest) as e:
            found.append((e.target.context.n_snapshots, write(e, code_prompts(e, 1, 40)[0], SAMPLED, CHAINS[0], 100)))
    (some, with_snapshots), (none, with_checkpoint) = found
    assert (some, none) == (4, 0)
    assert with_snapshots == with_checkpoint


def test_the_embedded_pair_takes_no_states() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(16, 4)) as e:
        assert e.target.max_leaves == 16
        assert e.target.context.n_snapshots == 0
